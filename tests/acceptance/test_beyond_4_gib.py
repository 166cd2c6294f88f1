"""A live ISO of more than 4 GiB: no offset is truncated to 32 bits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import Service, os_image, run_service
from tests.core.formats.filesystems.iso_builder import KERNEL_ARGUMENTS, live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The whole of it is read once at start, for its SHA-256. The core has offsets beyond 4 GiB in its own tests,
# and test_remote_bases serves them.
pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

VERSION = "huge"
GIB4 = 2**32
MARKER = bytes(reversed(range(256))) * 32  # not zero at 4 GiB, as the first byte of the ISO is
IGNITION_OFFSET = GIB4 + 64 * 1024 * 1024
IGNITION_LENGTH = 256 * 1024
CONFIG = {"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": "core"}]}}
APPENDED = ["rd.neednet=1"]


@attrs.frozen
class Area:
    """The extent of an embed area, as coreos-installer finds it."""

    offset: int
    length: int


@attrs.frozen
class Image:
    """An image and its expected content.

    Args:
        url: of the image.
        expected: file of the base, with the served areas laid over it.
        config: Ignition config.
    """

    url: str
    expected: Path
    config: bytes


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an ISO with a file across 4 GiB, then the Ignition area and an area of kernel arguments."""
    path = tmp_path_factory.mktemp("base") / "huge.iso"
    offsets = {"images/marker.img": GIB4 - len(MARKER) // 2, "images/ignition.img": IGNITION_OFFSET}
    write_sparse_iso(path, {**live_files(), "images/marker.img": MARKER}, offsets)
    yield path
    path.unlink()  # pytest keeps the directories of its last runs


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Service]:
    """Run the service."""
    with run_service(tmp_path_factory.mktemp("service"), [os_image(base, VERSION)]) as running:
        yield running


@pytest.fixture(scope="module")
def image(service: Service, base: Path) -> Iterator[Image]:
    """Register an infra-env; write the expected image."""
    infra_env_id = service.register(VERSION, CONFIG, APPENDED)
    url = f"{service.url}/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
    expected = service.directory / "expected.iso"
    run_client("cp", "--sparse=always", base, expected)
    with expected.open("r+b") as file:
        for area in _areas(base):
            file.seek(area.offset)
            file.write(_fetch_range(url, area.offset, area.offset + area.length))
    yield Image(url, expected, service.ignition_config(infra_env_id))
    expected.unlink()


def test_areas_hold_the_customization(image: Image) -> None:
    shown = run_client("coreos-installer", "iso", "ignition", "show", image.expected)
    assert shown == image.config
    shown = run_client("coreos-installer", "iso", "kargs", "show", image.expected)
    assert shown.decode() == " ".join([KERNEL_ARGUMENTS, *APPENDED]) + "\n"


def test_areas_lie_beyond_4_gib(base: Path) -> None:
    ignition, *arguments = _areas(base)
    assert ignition == Area(IGNITION_OFFSET, IGNITION_LENGTH)
    assert max(area.offset for area in arguments) > GIB4


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (GIB4 - 1, GIB4),
        (GIB4, GIB4 + 1),
        (GIB4 - len(MARKER), GIB4 + len(MARKER)),
        (IGNITION_OFFSET - 2048, IGNITION_OFFSET + 2048),
        (IGNITION_OFFSET + 1, IGNITION_OFFSET + IGNITION_LENGTH - 1),
        (IGNITION_OFFSET + IGNITION_LENGTH - 2048, IGNITION_OFFSET + IGNITION_LENGTH + 16384),
    ],
)
def test_range_beyond_4_gib_matches_the_expected_image(image: Image, start: int, stop: int) -> None:
    assert _fetch_range(image.url, start, stop) == _read(image.expected, start, stop)


def test_last_bytes_match_the_expected_image(image: Image) -> None:
    size = image.expected.stat().st_size
    fetched = run_client("curl", "--silent", "--show-error", "--fail", "--range", "-4097", image.url)
    assert fetched == _read(image.expected, size - 4097, size)


def test_size_beyond_4_gib_is_reported_in_full(image: Image) -> None:
    head = run_client("curl", "--silent", "--show-error", "--fail", "--head", image.url)
    assert f"\r\ncontent-length: {image.expected.stat().st_size}\r\n" in head.decode().lower()


def _areas(iso: Path) -> list[Area]:
    """Return the Ignition area, then those of the kernel arguments."""
    show = ("coreos-installer", "dev", "show", "iso")
    found = [json.loads(run_client(*show, "--ignition", iso))]
    found += json.loads(run_client(*show, "--kargs", iso))["kargs"]
    return [Area(area["offset"], area["length"]) for area in found]


def _fetch_range(url: str, start: int, stop: int) -> bytes:
    return run_client("curl", "--silent", "--show-error", "--fail", "--range", f"{start}-{stop - 1}", url)


def _read(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
