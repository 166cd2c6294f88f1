"""A release payload as the source of a stream: read by digest, once, and its ISO is in it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import StreamMetadataInvalid, Unavailable
from image_service.core.families.coreos.stream_metadata import PAYLOAD
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.streams.stream import StreamRelease
from image_service.server.streams.stream_state import StreamState, fetch_document, load_state, save_state
from image_service.settings.settings import Settings
from image_service.settings.stream_sources import StreamSource
from tests.core.families.coreos.streams import config_map, stream, text
from tests.registry_origin import RegistryOrigin, layer_of, publish_payload
from tests.server.catalog.origin import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.server.catalog.origin import Origin

GENERATIONS = {"rhel-9": ("coreos", "9.8.1-0"), "rhel-10": ("coreos10", "10.2.1-0")}


def iso(version: str) -> bytes:
    return f"ISO of {version}\n".encode() * 1000


@attrs.frozen
class Payloads:
    """A registry with payloads, and what reads streams of it."""

    payload: RegistryOrigin
    images: RegistryOrigin
    client: OriginClient

    def publish(self, versions: Mapping[str, str], *, is_named: bool = True) -> str:
        """Publish a payload with the ISOs of streams, by their names; return its digest."""
        isos, streams = {}, {}
        for name, version in versions.items():
            isos[f"{GENERATIONS.get(name, ('coreos10',))[0]}-x86_64.iso"] = iso(version)
            streams[name] = stream(version)
            told = streams[name]["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"]
            told["sha256"] = hashlib.sha256(iso(version)).hexdigest()
        default = next(iter(versions)) if is_named else None
        return publish_payload(self.payload, self.images, {"x86_64": isos}, config_map(streams, default))

    def source(self, name: str, mark: str = ":5.0") -> StreamSource:
        return StreamSource(name, f"release://{self.payload.host}/ocp/release{mark}", ("x86_64",))

    def refresh(self, source: StreamSource, state: StreamState) -> StreamState:
        fetched = fetch_document(source, state, self.client, Interruption())
        return state.with_offer(source, *fetched) if fetched else state

    def downloaded(self, directory: Path, source: StreamSource, state: StreamState) -> list[bytes]:
        """Return the ISOs of the releases of a stream, the newest first."""
        contents = []
        for number, release in enumerate(state.releases(source)):
            entry = StreamRelease(source.stream, release).entry
            path = directory / f"{source.stream}-{number}"
            download_file(self.client, entry.url, path, Interruption(), architecture=entry.cpu_architecture)
            contents.append(path.read_bytes())
            assert hashlib.sha256(contents[-1]).hexdigest() == entry.sha256
        return contents


@pytest.fixture
def payloads(origin: Origin) -> Payloads:
    payload, images = (RegistryOrigin(origin, f"ocp/{name}") for name in ("release", "art-dev"))
    environ = {"INSECURE_REGISTRIES": payload.host, "DATA_DIR": "/tmp"}
    settings = Settings.from_environment(environ, standalone=True)
    return Payloads(
        payload, images, OriginClient.from_settings(settings.download, registries=settings.registries)
    )


def test_each_stream_has_its_iso_in_the_payload(payloads: Payloads, tmp_path: Path) -> None:
    digest = payloads.publish({name: version for name, (_, version) in GENERATIONS.items()})
    for name, (_, version) in GENERATIONS.items():
        source = payloads.source(name)
        state = payloads.refresh(source, StreamState())
        assert state.is_default == (name == "rhel-9")
        (release,) = state.releases(source)
        assert release.payload == f"release://{payloads.payload.host}/ocp/release@{digest}#{name}"
        assert payloads.downloaded(tmp_path, source, state) == [iso(version)]


def test_moved_tag_is_another_release_and_the_one_before_stays(payloads: Payloads, tmp_path: Path) -> None:
    source = payloads.source("rhel-9")
    payloads.publish({"rhel-9": "9.8.1-0"})
    state = payloads.refresh(source, StreamState()).with_aliases(source, {"x86_64": "9.8.1-0"})
    save_state(tmp_path / "state", state)
    payloads.publish({"rhel-9": "9.8.2-0"})
    state = payloads.refresh(source, load_state(tmp_path / "state", source))
    assert [release.version for release in state.releases(source)] == ["9.8.2-0", "9.8.1-0"]
    assert payloads.downloaded(tmp_path, source, state) == [iso("9.8.2-0"), iso("9.8.1-0")]


def test_payload_that_is_known_is_not_read_again(payloads: Payloads) -> None:
    digest = payloads.publish({"rhel-9": "9.8.1-0"})
    for mark, requests in ((":5.0", 1), (f"@{digest}", 0)):
        source = payloads.source("rhel-9", mark)
        state = payloads.refresh(source, StreamState())
        before = len(payloads.payload.origin.requests)
        assert payloads.refresh(source, state) == state
        assert len(payloads.payload.origin.requests) - before == requests


def test_stream_without_a_name_is_the_one_that_is_there(payloads: Payloads, tmp_path: Path) -> None:
    """As in OKD, whose payload has the ISO of version 10 alone."""
    payloads.publish({"": "10.0.1-0"}, is_named=False)
    source = payloads.source("okd-next")
    state = payloads.refresh(source, StreamState())
    assert payloads.downloaded(tmp_path, source, state) == [iso("10.0.1-0")]


def test_image_that_is_not_a_payload_is_named(payloads: Payloads) -> None:
    payloads.payload.manifest([layer_of({"a": b""})], tag="5.0")
    with pytest.raises(StreamMetadataInvalid, match=r"@sha256:\w+ is not a release payload: it has no"):
        payloads.refresh(payloads.source("rhel-9"), StreamState())


def test_payload_that_cannot_be_fetched_is_fetched_later(payloads: Payloads) -> None:
    path = "/v2/ocp/release/manifests/5.0"
    payloads.payload.origin.serve(path, Reply(status=429, headers={"Retry-After": "77"}))
    with pytest.raises(Unavailable, match="status 429 to manifest") as caught:
        payloads.refresh(payloads.source("rhel-9"), StreamState())
    assert caught.value.retry_after_seconds == 77


def test_web_server_cannot_name_a_payload(payloads: Payloads, origin: Origin) -> None:
    document = {**stream(), PAYLOAD: "release://elsewhere.example/release:1"}
    source = StreamSource("stable", origin.serve("/stable.json", Reply(text(document))), ("x86_64",))
    (release,) = payloads.refresh(source, StreamState()).releases(source)
    assert release.payload is None
