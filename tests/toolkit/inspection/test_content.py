from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import DiskFormat, VirtualDisk
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.toolkit.inspection.content import read_content
from tests.acceptance.clients import run_client
from tests.toolkit.coreos_disk import BLS_ENTRY, BOOT_OFFSET, ESP_OFFSET, build_disk
from tests.toolkit.inspection.raw_disks import alter, content_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_coreos_disk_has_its_volumes(tmp_path: Path, sector_bytes: int) -> None:
    content = content_of(build_disk(tmp_path, sector_bytes=sector_bytes))

    assert content.table
    assert content.table.sector_size == sector_bytes
    kinds = [volume.file_system.kind if volume.file_system else None for volume in content.volumes]
    assert kinds == [None, "vfat", "ext4", "ext4"]
    assert (content.boot_records.bios_boot, content.boot_records.efi_system) == (1, 2)
    assert not content.boot_records.el_torito
    boot = content.find_volume("boot")
    assert boot
    assert boot.root
    assert find_node(boot.root, "loader/entries/ostree-1-test-coreos.conf").read() == BLS_ENTRY.encode()


def test_loaders_of_the_esp_are_listed(tmp_path: Path) -> None:
    disk = build_disk(tmp_path)
    (tmp_path / "loader").write_bytes(b"MZ")
    for name in ("BOOTX64.EFI", "BOOTAA64.EFI", "grubx64.efi"):
        run_client("mcopy", "-i", f"{disk}@@{ESP_OFFSET}", tmp_path / "loader", f"::EFI/BOOT/{name}")

    assert content_of(disk).boot_records.efi_loaders == ("EFI/BOOT/BOOTAA64.EFI", "EFI/BOOT/BOOTX64.EFI")


def test_damaged_superblock_is_described(tmp_path: Path) -> None:
    disk = build_disk(tmp_path)
    alter(disk, BOOT_OFFSET + 1024 + 120, b"other")

    volume = content_of(disk).volumes[2]

    assert volume.file_system is None
    assert volume.damage == "the ext4 file system is damaged: the checksum of its superblock is wrong"


def test_damaged_table_is_described(tmp_path: Path) -> None:
    disk = build_disk(tmp_path)
    alter(disk, 512 + 60, b"other")
    alter(disk, disk.stat().st_size - 512 + 60, b"other")

    content = content_of(disk)

    assert content.table is None
    assert content.table_damage
    assert "no valid GPT" in content.table_damage
    assert [volume.partition for volume in content.volumes] == [None]


def test_disk_without_partitions_is_one_volume(tmp_path: Path) -> None:
    run_client("mkfs.ext4", "-q", "-F", "-L", "some", tmp_path / "disk", "8M")

    (volume,) = content_of(tmp_path / "disk").volumes

    assert volume.partition is None
    assert volume.file_system
    assert volume.file_system.label == "some"


def test_boot_code_is_named_only_beside_its_signature(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    for first, expected in (
        (b"\xfa".ljust(510, b"\0") + b"\x55\xaa", True),
        (b"\xfa".ljust(512, b"\0"), False),
        (bytes(510) + b"\x55\xaa", False),
    ):
        disk.write_bytes(first + bytes(100_000))
        assert content_of(disk).boot_records.boot_code is expected


def test_image_whose_first_sector_cannot_be_read_is_refused() -> None:
    def read_at(offset: int, length: int) -> bytes:
        raise FormatError(f"damaged at {offset} {length}")

    with pytest.raises(FormatError, match="damaged at 0 512"):
        read_content(VirtualDisk(DiskFormat.QCOW2, "", 1 << 20, read_at, lambda: iter(())))
