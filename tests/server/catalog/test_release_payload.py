"""A release payload of the form of a real one: images by digest, two streams, two architectures."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.registry.release import find_machine_os_images
from image_service.core.errors import BaseImageError, FormatError, Unavailable
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.settings import Settings
from tests.registry_origin import GO, RegistryOrigin, layer_of, publish_payload, references
from tests.server.catalog.origin import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PREFIXES = {"rhel-9": "coreos", "rhel-10": "coreos10"}


def iso(stream: str, architecture: str) -> bytes:
    return f"{stream} {architecture}\n".encode() * 5000


def metadata(stream: str, **sha256: str) -> bytes:
    """Stream metadata; of some architectures with another digest."""
    architectures = {
        name: {
            "artifacts": {
                "metal": {
                    "release": "9.8.20260301-0",
                    "formats": {
                        "iso": {
                            "disk": {
                                "location": f"https://rhcos.example/{name}.iso",
                                "sha256": sha256.get(name, hashlib.sha256(iso(stream, name)).hexdigest()),
                            }
                        }
                    },
                }
            }
        }
        for name in GO
    }
    return json.dumps({"stream": stream, "architectures": architectures}).encode()


@attrs.frozen
class Release:
    """A registry with the repositories of a release."""

    payload: RegistryOrigin
    images: RegistryOrigin
    partial: Path
    client: OriginClient

    def publish(self, files: Mapping[str, Mapping[str, bytes]], config_map: bytes | None = None) -> str:
        """Publish a payload for several architectures; return its digest.

        Args:
            files: of machine-os-images, by architecture.
            config_map: ``coreos-bootimages``; None: it has none.
        """
        return publish_payload(self.payload, self.images, files, config_map)

    def fetch(self, name: str, architecture: str = "x86_64") -> bytes:
        url = f"release://{self.payload.host}/{self.payload.repository}{name}"
        download_file(self.client, url, self.partial, Interruption(), architecture=architecture)
        return self.partial.read_bytes()


def files_of(architecture: str, *streams: str) -> dict[str, bytes]:
    """The files of an architecture, in the order of a directory."""
    isos = {f"{PREFIXES[stream]}-{architecture}.iso": iso(stream, architecture) for stream in streams}
    documents = {f"{PREFIXES[stream]}-stream.json": metadata(stream) for stream in streams}
    return dict(sorted({**isos, **documents}.items()))


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    """An empty registry."""
    with running() as origin:
        payload, images = (RegistryOrigin(origin, f"ocp/{name}") for name in ("release", "art-dev"))
        environ = {"INSECURE_REGISTRIES": payload.host, "DATA_DIR": "/tmp"}
        settings = Settings.from_environment(environ, standalone=True)
        client = OriginClient.from_settings(settings.download, registries=settings.registries)
        yield Release(payload, images, tmp_path / "part", client)


def test_each_stream_of_each_architecture(release: Release) -> None:
    digest = release.publish({name: files_of(name, *PREFIXES) for name in GO})
    for name in (":5.0", f"@{digest}"):
        for architecture in GO:
            assert release.fetch(name, architecture) == iso("rhel-9", architecture)
            for stream in PREFIXES:
                assert release.fetch(f"{name}#{stream}", architecture) == iso(stream, architecture)
    assert release.fetch(":5.0#centos-10") == iso("rhel-10", "x86_64")


def test_payload_with_the_newer_stream_alone(release: Release) -> None:
    release.publish({"x86_64": files_of("x86_64", "rhel-10")})
    assert release.fetch(":5.0") == iso("rhel-10", "x86_64")
    with pytest.raises(BaseImageError, match=r"art-dev@sha256:\w+ has no coreos/coreos-x86_64.iso"):
        release.fetch(":5.0#rhel-9")


def test_older_stream_is_taken_whatever_the_order_of_the_files(release: Release) -> None:
    files = files_of("x86_64", *PREFIXES)
    release.publish({"x86_64": dict(reversed(files.items()))})
    assert release.fetch(":5.0") == iso("rhel-9", "x86_64")


def test_iso_that_its_metadata_do_not_have_is_refused(release: Release) -> None:
    files = {**files_of("x86_64", "rhel-9"), "coreos-stream.json": metadata("rhel-9", x86_64="0" * 64)}
    release.publish({"x86_64": files})
    with pytest.raises(BaseImageError, match=f"coreos/coreos-stream.json says {'0' * 64}"):
        release.fetch(":5.0")


def test_missing_architecture_is_named(release: Release) -> None:
    release.publish({"x86_64": files_of("x86_64", "rhel-9")})
    with pytest.raises(BaseImageError, match="nothing for linux/arm64; it has linux/amd64"):
        release.fetch(":5.0", "aarch64")


def test_image_that_another_one_took_the_place_of_is_refused(release: Release) -> None:
    digest = release.publish({"x86_64": files_of("x86_64", "rhel-9")})
    path = next(
        path
        for path in release.payload.origin.replies
        if f"{release.images.repository}/manifests/sha256" in path
    )
    release.images.manifest([layer_of({"coreos/coreos-x86_64.iso": b"evil"})], tag="evil")
    evil = release.payload.origin.replies[f"/v2/{release.images.repository}/manifests/evil"]
    release.payload.origin.replies[path] = evil
    with pytest.raises(Unavailable, match="the digest of manifest"):
        release.fetch(f"@{digest}")


def test_image_that_is_no_payload_is_named(release: Release) -> None:
    release.payload.manifest([layer_of({"a": b""})], tag="5.0")
    with pytest.raises(BaseImageError, match="is not a release payload"):
        release.fetch(":5.0")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not an ImageStream"),
        (b'{"spec": {"tags": [5]}}', "is not an ImageStream"),
        (references(cli="quay.io/a@sha256:0"), "has no image machine-os-images"),
        (references(**{"machine-os-images": "quay.io/a:latest"}), "by its digest"),
        (references(**{"machine-os-images": "not a name"}), "must"),
    ],
)
def test_references_that_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        find_machine_os_images(content)
