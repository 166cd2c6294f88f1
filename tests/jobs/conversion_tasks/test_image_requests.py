"""Requests for images and snapshots, as far as no object is read."""

from __future__ import annotations

import pytest

from image_service.common.http.origins import AllowedOrigins
from image_service.common.objects.s3_client import S3Options
from image_service.jobs.conversion_tasks.image_requests import parse_import_image, parse_import_snapshot
from image_service.jobs.ec2.errors import Ec2Error
from image_service.jobs.ec2.operations import Ec2Caller
from image_service.jobs.imports.actions import TIMES
from image_service.jobs.imports.objects import ObjectSources

CALLER = Ec2Caller("", "KEY", (), (), "0")


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://[zz]/a?X-Amz-Signature=secret",
        "http://user:secret@[::1/a",
        "https://a\u2100b/",
        "http://h:99999/a?secret",
        "ftp://h/a",
    ],
)
def test_url_that_is_not_valid_is_refused(url: str) -> None:
    snapshot = parse_import_snapshot({"DiskContainer": {"Url": url}})
    image = parse_import_image({"DiskContainers": [{"Url": url}]})
    sources = ObjectSources(S3Options(), AllowedOrigins(frozenset()), TIMES)
    for location in (*snapshot.locations, *image.locations):
        assert "secret" not in str(location)
        with pytest.raises(Ec2Error, match=r"DiskContainer\.(1\.)?Url") as refused:
            sources.find(CALLER, location)
        assert "secret" not in refused.value.detail
