"""Remote base images in real registries: ready from a few ranges, another version when the tag is moved."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.objects.s3_client import S3Options
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.remote.build_remote import build_remote_images
from image_service.settings.os_images import parse_os_images
from image_service.settings.remote import RemoteSettings
from image_service.settings.settings import Settings
from tests.registry_server import RegistryServer, running_crane_registry, running_docker_registry
from tests.remote_base import dense_base, write_island_base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.catalog.remote.opening import RemoteImages
    from image_service.settings.os_images import OsImage

REPOSITORY = "tests/iso"
READY_BYTES = 64 * 1024 * 1024
"""More than is read of a small image before it is ready; what is read does not grow with the image."""


@pytest.fixture(params=["docker", "crane"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryServer]:
    """A running registry."""
    (tmp_path / "registry").mkdir()
    run = running_docker_registry if request.param == "docker" else running_crane_registry
    with run(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def images(registry: RegistryServer, reactor: EPollReactor, tmp_path: Path) -> Iterator[RemoteImages]:
    """What opens remote images."""
    environ = {"DATA_DIR": str(tmp_path), "INSECURE_REGISTRIES": registry.host}
    settings = Settings.from_environment(environ, standalone=True)
    client = OriginClient.from_settings(settings.download, registries=settings.registries)
    made = build_remote_images(
        reactor, RemoteSettings(), S3Options(), client, data_dir=tmp_path, keys=None, is_leader=True
    )
    made.start()
    yield made
    made.interrupt()
    made.close()


def entry_of(registry: RegistryServer) -> OsImage:
    entry = {"openshift_version": "4.20", "version": "9.6.1-0", "cpu_architecture": "x86_64", "remote": True}
    (image,) = parse_os_images(json.dumps([{**entry, "url": f"oci://{registry.host}/{REPOSITORY}:1"}]))
    return image


def test_moved_tag_is_another_version_and_the_pinned_one_stays_readable(
    registry: RegistryServer, images: RemoteImages
) -> None:
    contents = [dense_base(4, seed) for seed in range(2)]
    registry.push(REPOSITORY, "1", {"a.iso": contents[0]})
    opened = images.open(entry_of(registry), Interruption(), lambda _: None)
    assert opened.verified == "origin"
    assert not images.is_changed(opened)
    registry.push(REPOSITORY, "1", {"a.iso": contents[1]})
    assert images.is_changed(opened)
    newer = images.open(entry_of(registry), Interruption(), lambda _: None)
    for image, content in zip((opened, newer), contents, strict=True):
        assert image.base.file.read_at(0, len(content)) == content
        image.base.file.close()
    assert opened.base.sha256 != newer.base.sha256


@pytest.mark.parametrize("gibibytes", [pytest.param(2), pytest.param(60, marks=pytest.mark.soak)])
def test_sparse_layer_is_ready_from_a_few_ranges(
    registry: RegistryServer, images: RemoteImages, tmp_path: Path, gibibytes: int
) -> None:
    write_island_base(tmp_path / "big.iso", gibibytes)
    registry.push(REPOSITORY, "1", {"big.iso": tmp_path / "big.iso"})
    started = time.monotonic()
    opened = images.open(entry_of(registry), Interruption(), lambda _: None)
    print(f"ready in {time.monotonic() - started:.2f} s")  # noqa: T201 - for the notes of a release
    assert opened.base.file.size == (tmp_path / "big.iso").stat().st_size
    assert images.local_bytes(opened) < READY_BYTES
    opened.base.file.close()
