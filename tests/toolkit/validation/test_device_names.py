"""Names of devices in fstab and root=, and whether they find what is on the disk."""

from __future__ import annotations

import pytest

from image_service.core.formats.disk.partition_types import BIOS_BOOT, LINUX_FILE_SYSTEM
from image_service.core.formats.disk.partitions import Partition
from image_service.core.formats.filesystems.detection import FileSystem
from image_service.toolkit.inspection.content import BootRecords, DiskContent, Volume
from image_service.toolkit.validation.device_names import DeviceName, judge_device

UUID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
PARTUUID = "11111111-2222-3333-4444-555555555555"
ON_DISK, MISSING, HARDWARE, UNKNOWN = DeviceName


def disk(*systems: FileSystem | None) -> DiskContent:
    """Return a disk with a BIOS boot partition, partition 2 with a file system, and others after it."""
    volumes = [Volume(Partition(1, 0, 512, BIOS_BOOT, "", ""), None, lambda _offset, _length: b"", 512)]
    for number, system in enumerate((FileSystem("ext4", "My data", UUID), *systems), start=2):
        uuid = PARTUUID if number == 2 else ""
        partition = Partition(number, 0, 512, LINUX_FILE_SYSTEM, f"Part {number}", uuid)
        volumes.append(Volume(partition, system, lambda _offset, _length: b"", 512))
    records = BootRecords(
        boot_code=False, bios_boot=1, active=(), efi_system=None, efi_loaders=(), el_torito=False
    )
    return DiskContent(None, None, records, tuple(volumes), None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/dev/sda1", HARDWARE),
        ("/dev/nvme0n1p2", HARDWARE),
        ("/dev/xvdb", HARDWARE),
        ("/dev/dasda1", HARDWARE),
        ("/dev/disk/by-id/ata-QEMU_HARDDISK_QM00001-part2", HARDWARE),
        ("/dev/disk/by-id/wwn-0x5000c500a1b2c3d4", HARDWARE),
        ("/dev/disk/by-path/pci-0000:00:05.0-part1", HARDWARE),
        ("/dev/disk/by-id/dm-name-vg-root", UNKNOWN),
        ("/dev/disk/by-id/lvm-pv-uuid-x", UNKNOWN),
        ("/dev/disk/by-id/md-uuid-1:2:3:4", UNKNOWN),
        ("/dev/mapper/vg-root", UNKNOWN),
        ("tmpfs", UNKNOWN),
        (f"UUID={UUID}", ON_DISK),
        (f'UUID="{UUID.upper()}"', ON_DISK),
        (f"/dev/disk/by-uuid/{UUID}", ON_DISK),
        ("/dev/disk/by-uuid/aaaaaaaa-0000-0000-0000-000000000000", MISSING),
        ("LABEL=My data", ON_DISK),
        ("LABEL=my data", MISSING),
        (r"/dev/disk/by-label/My\x20data", ON_DISK),
        (r"/dev/disk/by-label/MY\x20DATA", MISSING),
        (f"PARTUUID={PARTUUID}", ON_DISK),
        (f"/dev/disk/by-partuuid/{PARTUUID}", ON_DISK),
        ("PARTLABEL=Part 2", ON_DISK),
        ("PARTLABEL=part 2", MISSING),
        (r"/dev/disk/by-partlabel/Part\x202", ON_DISK),
        (f"PARTUUID={PARTUUID}/PARTNROFF=-1", ON_DISK),
        (f"PARTUUID={PARTUUID}/PARTNROFF=1", MISSING),
        ("PARTUUID=11111111-2222-3333-4444-555555555554/PARTNROFF=1", MISSING),
        ("UUID=", UNKNOWN),
    ],
)
def test_name_is_judged(name: str, expected: DeviceName) -> None:
    assert judge_device(name, disk()) is expected


@pytest.mark.parametrize(
    ("system", "name", "expected"),
    [
        (FileSystem("LVM2_member", "", "x"), "UUID=1", UNKNOWN),
        (FileSystem("crypto_LUKS", "", "x"), "LABEL=1", UNKNOWN),
        (None, "UUID=1", UNKNOWN),
        (FileSystem("squashfs"), "LABEL=1", UNKNOWN),
        (FileSystem("exfat", "", "1234-5678"), "LABEL=1", UNKNOWN),
        (FileSystem("exfat", "", "1234-5678"), "UUID=1", MISSING),
        (FileSystem("ntfs", "", "0123", problem="damaged"), "LABEL=1", UNKNOWN),
        (FileSystem("xfs", "", "x"), "UUID=1", MISSING),
        (FileSystem("LVM2_member", "", "x"), "PARTUUID=1", MISSING),
    ],
)
def test_name_may_be_of_a_volume_that_is_not_read(
    system: FileSystem | None, name: str, expected: DeviceName
) -> None:
    assert judge_device(name, disk(system)) is expected
