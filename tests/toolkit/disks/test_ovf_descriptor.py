"""OVF descriptors that differ from their OVA; those that are refused are among `HOSTILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.disks.opening import open_image
from tests.toolkit.corpus.images import DISK_BYTES
from tests.toolkit.corpus.others import ovf, stream_vmdk, tar

if TYPE_CHECKING:
    from pathlib import Path

DISK = "disk.vmdk"
RIGHT = ovf(DISK).decode()


def warnings_of(directory: Path, descriptor: str, disk: str = DISK) -> tuple[str, ...]:
    path = directory / "vm.ova"
    path.write_bytes(tar(("vm.ovf", descriptor.encode()), (disk, stream_vmdk())))
    with open_image(path) as image:
        return image.warnings


@pytest.mark.parametrize(
    ("descriptor", "disk"),
    [
        (RIGHT, DISK),
        (RIGHT.replace("envelope/1", "envelope/2"), DISK),
        (RIGHT.replace(DISK, f"./{DISK}"), DISK),
        (RIGHT.replace(DISK, "my%20disk.vmdk"), "my disk.vmdk"),
        (RIGHT.replace(DISK, "100%25.vmdk"), "100%25.vmdk"),
        (RIGHT.replace("ovf:diskId", 'ovf:capacityAllocationUnits="byte" ovf:diskId'), DISK),
        (RIGHT.replace(f'"{DISK_BYTES}"', '"${size}"'), DISK),
        (RIGHT.replace("disks<", f"disks</Info><Info x='{'y' * 100_000}'><"), DISK),
    ],
    ids=["plain", "version 2", "dot", "escaped", "with a percent sign", "unit", "parameter", "long property"],
)
def test_right_descriptor_has_no_warning(descriptor: str, disk: str, tmp_path: Path) -> None:
    assert warnings_of(tmp_path, descriptor, disk) == ()


@pytest.mark.parametrize(
    ("capacity", "told"),
    [
        ("7", 7),
        ('7" ovf:capacityAllocationUnits="byte * 2^30', 7 << 30),
        ('7" ovf:capacityAllocationUnits="byte*10^9', 7_000_000_000),
        ("999999999999999999", 999999999999999999),
    ],
)
def test_other_capacity_is_a_warning_with_both_numbers(capacity: str, told: int, tmp_path: Path) -> None:
    descriptor = RIGHT.replace(f'capacity="{DISK_BYTES}', f'capacity="{capacity}')
    assert warnings_of(tmp_path, descriptor) == (
        f"vm.ovf in the OVA says that the disk has {told} bytes; it has {DISK_BYTES}",
    )


def test_other_size_of_a_file_is_a_warning_with_both_numbers(tmp_path: Path) -> None:
    descriptor = RIGHT.replace("ovf:href", 'ovf:size="5" ovf:href')
    assert warnings_of(tmp_path, descriptor) == (
        f"vm.ovf in the OVA says that {DISK} has 5 bytes; it has {len(stream_vmdk())}",
    )


def test_file_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    descriptor = RIGHT.replace("</References>", '<File ovf:id="f2" ovf:href="driver.iso"/></References>')
    assert warnings_of(tmp_path, descriptor) == (
        "vm.ovf in the OVA refers to 'driver.iso', which is not in the OVA",
    )
