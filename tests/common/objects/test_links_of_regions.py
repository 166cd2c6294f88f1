"""Clients name the regions of uploads: as many as they like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.common.objects import s3_links
from image_service.common.objects.s3_links import S3Links
from image_service.settings.remote import S3Settings

if TYPE_CHECKING:
    import pytest


class Client:
    """Signs nothing."""

    def generate_presigned_url(self, _method: str, parameters: dict[str, str], _seconds: int) -> str:
        return f"https://s3/{parameters['Bucket']}/{parameters['Key']}?signature"


def test_clients_of_few_regions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str | None] = []

    def make(_: S3Settings, region: str | None) -> Any:
        made.append(region)
        return Client()

    monkeypatch.setattr(s3_links, "make_s3_client", make)
    links = S3Links(S3Settings())
    for number in range(100):
        links.url_of("s3://b/k", f"region-{number}")
    assert links.url_of("s3://b/k", "region-99", is_public=True) == "https://s3/b/k"
    assert len(made) == 100
    links.url_of("s3://b/k", "region-0")
    assert len(made) == 101
