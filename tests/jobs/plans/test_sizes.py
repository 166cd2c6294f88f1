from __future__ import annotations

import pytest

from image_service.jobs.model import ComposeBase, ComposeRequest, ImageCustomization, ImageType, UploadTarget
from image_service.jobs.plans.import_plan import ImportedDisk, make_object_import_plan
from image_service.jobs.plans.plan import make_plan
from image_service.jobs.plans.sizes import most_bytes

MIB, GIB = 1024**2, 1024**3
FILE = 16 * GIB + GIB // 4 + 64 * MIB


@pytest.mark.parametrize(
    ("image_type", "base_format", "size", "expected"),
    [
        (ImageType.LIVE_INSTALLER, "", None, 0),
        (ImageType.MINIMAL_RAW, "raw", None, FILE),
        (ImageType.VSPHERE, "raw", None, 2 * FILE),
        (ImageType.MINIMAL_RAW, "vmdk", None, 2 * FILE),
        (ImageType.MINIMAL_RAW, "raw", 32 * GIB, FILE + 2 * FILE - 64 * MIB),
    ],
)
def test_compose_takes_its_disk_for_each_file(
    image_type: ImageType, base_format: str, size: int | None, expected: int
) -> None:
    base = ComposeBase("1", "x86_64", "metal" if base_format else "", base_format)
    request = ComposeRequest(
        "rhcos-4.19", "x86_64", image_type, ImageCustomization(b"{}"), size, (UploadTarget("local"),), {}
    )
    assert most_bytes(make_plan("1", request, base, None), base.virtual_size) == expected


def test_import_takes_its_volumes() -> None:
    disks = [ImportedDisk("RAW", 5, gib * GIB, {}) for gib in (16, 16)]
    assert most_bytes(make_object_import_plan(disks, []), 0) == 2 * FILE
