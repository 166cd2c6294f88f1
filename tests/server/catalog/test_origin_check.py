from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from image_service.server.catalog.download.origin_check import check_origins
from image_service.server.catalog.download.origin_client import OriginClient, trusted_authorities
from image_service.settings.base_images import DownloadSettings
from image_service.settings.registries import RegistrySettings
from tests.registry_origin import RAW, RegistryOrigin, layer_of
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON_SECONDS = 0.5
AMPLE_SECONDS = 60.0


@pytest.fixture
def origin() -> Iterator[Origin]:
    """A server."""
    with running() as made:
        yield made


@pytest.fixture
def client() -> OriginClient:
    """Without credentials."""
    return OriginClient(trusted_authorities(), AMPLE_SECONDS)


def test_urls_that_answer_have_no_fault(origin: Origin, client: OriginClient) -> None:
    part = Reply(b"i", status=206, headers={"Content-Range": "bytes 0-0/5000"})
    urls = [origin.serve("/part", part), origin.serve("/whole", Reply(b"image" * 1000))]
    assert check_origins(client, urls, AMPLE_SECONDS) == []
    assert [request.headers["Range"] for request in origin.requests] == ["bytes=0-0"] * 2


def test_faults_are_in_the_order_of_the_urls_and_have_no_query(origin: Origin, client: OriginClient) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        refusing = f"http://127.0.0.1:{closed.getsockname()[1]}/refused"
        urls = [
            origin.serve("/forbidden", Reply(status=403)) + "?token=top-secret",
            origin.serve("/good", Reply(b"whole")),
            f"{refusing}?token=top-secret",
            *(origin.serve(f"/{number}", Reply(status=404)) for number in range(20)),
        ]
        assert check_origins(client, urls, AMPLE_SECONDS) == [
            f"cannot fetch {origin.url('/forbidden')}: answered with status 403",
            f"cannot fetch {refusing}: Connection refused",
            *(f"cannot fetch {origin.url(f'/{number}')}: answered with status 404" for number in range(20)),
        ]


def test_origin_that_does_not_respond_is_given_up(origin: Origin, client: OriginClient) -> None:
    url = origin.serve("/silent", Reply(hold_head=True)) + "?token=top-secret"
    assert check_origins(client, [url], SOON_SECONDS) == [
        f"cannot fetch {origin.url('/silent')}: no response within 0.5 s"
    ]


def test_without_urls_there_is_nothing_to_do(client: OriginClient) -> None:
    assert check_origins(client, [], AMPLE_SECONDS) == []


def test_manifests_in_registries_are_tried(origin: Origin) -> None:
    registry = RegistryOrigin(origin)
    registry.manifest([(b"iso", RAW)])
    registry.manifest([layer_of({"a.iso": b""})], tag="image")
    registry.index({"arm64": registry.manifest([(b"iso", RAW)], tag="arm64")}, tag="index")
    settings = RegistrySettings(insecure=(registry.host,))
    client = OriginClient.from_settings(DownloadSettings(), registries=settings)
    good = [registry.url(), registry.url(":image", "/a.iso"), registry.url(":index")]
    bad = [registry.url(":none"), registry.url(":image"), registry.url(":index", "/a.iso")]
    architectures = {**dict.fromkeys((*good, *bad), "x86_64"), good[2]: "aarch64"}
    assert check_origins(client, [*good, *bad], AMPLE_SECONDS, architectures) == [
        (
            f"cannot fetch {bad[0]}: {registry.host}/{registry.repository}: answered with status 404 to"
            " manifest none"
        ),
        f"{bad[1]}: it is a container image; its URL must name the file in it, such as #/disk/*",
        f"{bad[2]}: the index has nothing for linux/amd64; it has linux/arm64",
    ]
    assert not [each for each in origin.requests if "/blobs/" in each.target]
