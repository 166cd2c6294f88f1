"""Images that are one object, in each format: found by their URL, and their format by their content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.http.origins import AllowedOrigins, parse_origin
from image_service.common.objects.s3_client import S3Options
from image_service.jobs.conversion_tasks.image_requests import parse_import_snapshot
from image_service.jobs.ec2.operations import Ec2Caller
from image_service.jobs.imports.actions import TIMES
from image_service.jobs.imports.objects import ObjectSources
from image_service.toolkit.commands import main
from tests.acceptance.clients import needs_client
from tests.common.transfer.manifests import QUERY, SECRET
from tests.jobs.ec2_clients import converted
from tests.server.catalog.origin import Origin, Resource, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRIVERS = {
    "VMDK": ("vmdk", "-o", "subformat=streamOptimized"),
    "VHD": ("vpc", "-o", "force_size=on"),
    "VHDX": ("vhdx",),
    "QCOW2": ("qcow2",),
}
DISK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def store() -> Iterator[Origin]:
    with running() as origin:
        yield origin


def image_of(format_name: str, directory: Path) -> Path:
    """Make an image of an empty disk."""
    disk = directory / "disk.raw"
    disk.write_bytes(bytes(DISK_BYTES))
    if format_name in DRIVERS:
        return converted(disk, "raw", *DRIVERS[format_name])
    if format_name == "OVA":
        needs_client("qemu-img")
        assert main(["convert", str(disk), f"{disk}.ova", "--format=ova", "--no-digest"]) == 0
        return disk.with_name("disk.raw.ova")
    return disk


@pytest.mark.parametrize("format_name", ["RAW", "OVA", *DRIVERS])
def test_format_is_detected_and_declared(format_name: str, store: Origin, tmp_path: Path) -> None:
    path = image_of(format_name, tmp_path)
    store.serve(f"/{format_name}", Resource(path.read_bytes()))
    url = store.url(f"/{format_name}{QUERY}")
    sources = ObjectSources(S3Options(), AllowedOrigins(frozenset({parse_origin(store.url(""))})), TIMES)
    (detected,) = parse_import_snapshot({"DiskContainer": {"Url": url}}).locations
    for location in (detected, attrs.evolve(detected, format_name=format_name)):
        assert SECRET not in str(location)
        found = sources.find(Ec2Caller("", "KEY", (), (), "0"), location)
        assert (found.format_name, found.url) == (format_name, url)
        assert (found.size, found.virtual_size) == (path.stat().st_size, DISK_BYTES)


def test_url_of_s3_names_bucket_and_key() -> None:
    (location,) = parse_import_snapshot({"DiskContainer": {"Url": "s3://bucket/a/disk.vmdk"}}).locations
    assert (location.bucket, location.key, location.url) == ("bucket", "a/disk.vmdk", "")
