"""The S3 server of the tests: what it answers to ranges of an object of 60 GiB."""

from __future__ import annotations

import http.client
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.s3_server import BUCKET, S3Server, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance


@pytest.fixture
def s3_server(tmp_path: Path) -> Iterator[S3Server]:
    """Run the server."""
    with running_s3_server(tmp_path) as running:
        yield running


def test_object_is_a_file_that_only_signed_requests_read(s3_server: S3Server) -> None:
    (s3_server.directory / "sparse.iso").touch()
    os.truncate(s3_server.directory / "sparse.iso", 60 * 2**30)
    assert s3_server.publish("sparse.iso") == f"s3://{BUCKET}/sparse.iso"
    with closing(http.client.HTTPConnection("127.0.0.1", s3_server.port)) as connection:
        connection.request("GET", f"/{BUCKET}/sparse.iso", headers={"Range": "bytes=0-0"})
        assert connection.getresponse().status == 403
