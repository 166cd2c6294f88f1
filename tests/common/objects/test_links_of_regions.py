"""Clients name the regions of uploads: as many as they like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.objects import s3_links
from image_service.common.objects.s3_client import S3Client, S3Options
from image_service.common.objects.s3_links import S3Links

if TYPE_CHECKING:
    import pytest


def test_clients_of_few_regions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str | None] = []

    def make(options: S3Options) -> S3Client:
        made.append(options.region)
        return S3Client(options)

    monkeypatch.setattr(s3_links, "S3Client", make)
    monkeypatch.setattr(S3Client, "presign", lambda *_: "https://s3/b/k?signature")
    links = S3Links(S3Options())
    for number in range(100):
        links.url_of("s3://b/k", f"region-{number}")
    assert links.url_of("s3://b/k", "region-99", is_public=True) == "https://s3/b/k"
    assert len(made) == 100
    links.url_of("s3://b/k", "region-0")
    assert len(made) == 101
