"""Ranges of a layer in a registry: pinned by its digest, and no answer believed that does not fit it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.block_cache.source import OriginChanged, OriginFailed
from image_service.common.registry.client import RegistryClient
from image_service.common.registry.references import parse_registry_url
from image_service.core.errors import BaseImageError
from image_service.server.catalog.download.registry_options import registry_options
from image_service.server.catalog.remote.registry_origin import RegistryLayer
from image_service.server.catalog.remote.source import PinnedSource
from image_service.settings.proxies import NO_PROXIES
from image_service.settings.registries import RegistrySettings
from tests.origin_faults import EXPIRED_PATH, FAULTS, Fault
from tests.registry_origin import RAW, RegistryOrigin, auth_entry, digest_of, layer_of
from tests.remote_base import noise
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.server.catalog.origin import Origin, ReceivedRequest

BODY = noise(300_000)
LENGTH = 100_000
# A registry has no ETag to be wrong, nor does it know conditions.
_OF_ETAGS = {"other ETag", "weak ETag"}


@attrs.frozen
class Ranges:
    """A registry, and the layers that were opened in it."""

    registry: RegistryOrigin
    directory: Path
    clients: list[RegistryClient] = attrs.field(factory=list)

    def open(self, path: str = "", **settings: object) -> RegistryLayer:
        found = RegistrySettings(insecure=(self.registry.host,), **settings)  # type: ignore[arg-type]
        client = RegistryClient(registry_options(found, None, NO_PROXIES), 4)
        self.clients.append(client)
        file = parse_registry_url(self.registry.url(path=path))
        return RegistryLayer(file, "x86_64", client, Interruption())

    @property
    def blob_ranges(self) -> list[str | None]:
        return [each.headers["Range"] for each in self.registry.origin.requests if "/blobs/" in each.target]


@pytest.fixture
def ranges(origin: Origin, tmp_path: Path) -> Iterator[Ranges]:
    """A registry with one artifact."""
    registry = RegistryOrigin(origin)
    registry.manifest([(BODY, RAW)])
    made = Ranges(registry, tmp_path)
    yield made
    for client in made.clients:
        client.close()


def read(layer: RegistryLayer, offset: int = 1000, length: int = LENGTH) -> bytes:
    content = bytearray(length)
    layer.fetch(layer.find_version(), offset, memoryview(content))
    return bytes(content)


def test_digest_is_the_validator_and_each_range_has_an_end(ranges: Ranges) -> None:
    layer = ranges.open()
    pin = layer.find_version()
    assert (pin.etag, pin.size, pin.version) == (digest_of(BODY), len(BODY), digest_of(BODY))
    assert read(layer) == BODY[1000 : 1000 + LENGTH]
    assert ranges.blob_ranges == ["bytes=0-0", "bytes=0-0", f"bytes=1000-{1000 + LENGTH - 1}"]


def test_moved_tag_is_another_version_and_the_pinned_one_stays(ranges: Ranges) -> None:
    layer = ranges.open()
    pin = layer.find_version()
    ranges.registry.manifest([(BODY[::-1], RAW)])
    assert layer.find_version().etag == digest_of(BODY[::-1])
    content = bytearray(LENGTH)
    layer.fetch(pin, 0, memoryview(content))
    assert content == BODY[:LENGTH]


def test_blob_that_is_gone_is_a_change(ranges: Ranges) -> None:
    layer = ranges.open()
    pin = layer.find_version()
    ranges.registry.spoil = lambda *_: Reply(status=404)
    with pytest.raises(OriginChanged, match="404 to blob sha256:"):
        layer.fetch(pin, 0, memoryview(bytearray(5)))


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - _OF_ETAGS - {"a byte a second"}))
def test_fault_is_noticed_and_healed_by_another_attempt(ranges: Ranges, name: str) -> None:
    layer, fault = ranges.open(), FAULTS[name]
    ranges.registry.origin.serve(EXPIRED_PATH, Reply(status=403))
    pin = layer.find_version()
    spoil(ranges.registry, fault)
    with pytest.raises(OriginFailed) as caught:
        layer.fetch(pin, 1000, memoryview(bytearray(LENGTH)))
    assert f"{ranges.registry.host}/{ranges.registry.repository}: " in str(caught.value)
    content = bytearray(LENGTH)
    spoil(ranges.registry, fault, times=1)
    source = PinnedSource(layer, pin, "image", lambda: None)
    source.fetch(1000, memoryview(content))
    assert content == BODY[1000 : 1000 + LENGTH]


def spoil(registry: RegistryOrigin, fault: Fault, times: int = 10) -> None:
    left = [times]

    def change(_: ReceivedRequest, reply: Reply) -> Reply:
        left[0] -= 1
        return fault(reply) if left[0] >= 0 else reply

    registry.spoil = change


def test_registry_that_asks_for_patience_gets_it(ranges: Ranges) -> None:
    layer = ranges.open()
    pin = layer.find_version()
    ranges.registry.spoil = lambda *_: Reply(status=429, headers={"Retry-After": "77"})
    with pytest.raises(OriginFailed, match="status 429") as caught:
        layer.fetch(pin, 0, memoryview(bytearray(5)))
    assert caught.value.retry_after_seconds == 77


@pytest.mark.parametrize("status", [200, 416])
def test_registry_without_ranges_is_refused(ranges: Ranges, status: int) -> None:
    ranges.registry.spoil = lambda *_: Reply(BODY, status)
    with pytest.raises((BaseImageError, OriginFailed), match=r"does not serve ranges|status 416"):
        ranges.open().find_version()


def test_range_of_unknown_total_is_believed(ranges: Ranges) -> None:
    ranges.registry.spoil = lambda _, reply: attrs.evolve(
        reply, headers={"Content-Range": reply.headers["Content-Range"].rpartition("/")[0] + "/*"}
    )
    assert read(ranges.open()) == BODY[1000 : 1000 + LENGTH]


@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        (lambda registry: registry.manifest([layer_of({"a": b""})]), "/a", "is packed; have it downloaded"),
        (lambda registry: registry.manifest([layer_of({"a": b""})]), "", "is a container image"),
        (lambda registry: registry.index({"arm64": registry.manifest([])}), "", "nothing for linux/amd64"),
    ],
)
def test_what_cannot_stay_is_refused(
    ranges: Ranges, change: Callable[[RegistryOrigin], object], path: str, reason: str
) -> None:
    change(ranges.registry)
    with pytest.raises(BaseImageError, match=reason):
        ranges.open(path).find_version()


def test_token_that_ends_between_ranges_is_renewed(ranges: Ranges) -> None:
    ranges.registry.needs_token = True
    file = ranges.directory / "auth.json"
    file.write_text(f'{{"auths": {{"{ranges.registry.host}": {{"auth": "{auth_entry()["auth"]}"}}}}}}')
    layer = ranges.open(auth_files=(file,))
    pin = layer.find_version()
    for offset in range(0, 50_000, 10_000):
        ranges.registry.tokens += 1  # the one that was issued has ended
        content = bytearray(10_000)
        layer.fetch(pin, offset, memoryview(content))
        assert content == BODY[offset : offset + 10_000]


def test_link_to_another_host_is_followed_kept_and_renewed(ranges: Ranges) -> None:
    with running() as cdn:
        seen: list[str] = []

        def redirect(request: ReceivedRequest, _: Reply) -> Reply:
            seen.append(request.target)
            return Reply(status=307, headers={"Location": f"{cdn.url('/layer')}?signature={len(seen)}"})

        def serve(request: ReceivedRequest) -> Reply:
            if not request.target.endswith(f"={len(seen)}"):
                return Reply(status=403)
            first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
            fields = {"Content-Range": f"bytes {first}-{last}/{len(BODY)}"}
            return Reply(BODY[first : last + 1], 206, fields)

        ranges.registry.spoil = redirect
        cdn.serve("/layer", serve)
        layer = ranges.open()
        assert read(layer) == BODY[1000 : 1000 + LENGTH]
        assert len(seen) == 1
        seen.append("the link has expired")
        assert read(layer) == BODY[1000 : 1000 + LENGTH]
        assert len(seen) == 3
        ranges.clients.pop().close()  # before its host is
