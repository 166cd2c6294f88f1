"""The content of a disk: its partition table, its boot records, and the file systems in its volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.core.formats.disk.partition_types import BIOS_BOOT, EFI_SYSTEM, EXTENDED, MBR_EFI_SYSTEM
from image_service.core.formats.disk.partitions import Partition, PartitionTable, read_partitions
from image_service.core.formats.filesystems.detection import FileSystem, detect_file_system
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.iso9660.volume import Iso9660, read_iso9660
from image_service.core.formats.reading import ReadAt, Span, SpanReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.disk.model import VirtualDisk
    from image_service.core.formats.filesystems.file_tree import TreeNode

_BOOT_CODE_BYTES = 440
_BOOT_SIGNATURE = b"\x55\xaa"
_EFI_BOOT_DIRECTORY = "EFI/BOOT"
_EL_TORITO, _EL_TORITO_OFFSET = b"EL TORITO SPECIFICATION", 34823
_MAX_LOADERS = 64


@attrs.frozen(eq=False)
class Volume:
    """A partition, or a disk without partitions.

    Args:
        partition: None: the whole disk.
        file_system: None: none is known, or it is damaged.
        read_at: reads the volume by its own offsets.
        size: bytes.
        damage: what is wrong with its superblock; None: nothing.
    """

    partition: Partition | None
    file_system: FileSystem | None
    read_at: ReadAt
    size: int
    damage: str | None = None

    @property
    def root(self) -> TreeNode | None:
        """Return the root directory if its files can be read."""
        return self.file_system.root if self.file_system else None


@attrs.frozen
class BootRecords:
    """The records on a disk by which firmware boots it.

    Args:
        boot_code: the first sector has a program for BIOS.
        bios_boot: number of the partition for GRUB's second stage on a GPT; None: there is none.
        active: numbers of the MBR's partitions that are marked for booting.
        efi_system: number of the EFI system partition; None: there is none.
        efi_loaders: paths of its loaders for removable media (``EFI/BOOT/BOOTX64.EFI``), as it spells them.
        el_torito: the disk has the boot record of a CD-ROM.
    """

    boot_code: bool
    bios_boot: int | None
    active: tuple[int, ...]
    efi_system: int | None
    efi_loaders: tuple[str, ...]
    el_torito: bool


@attrs.frozen(eq=False)
class DiskContent:
    """The content of a disk.

    Args:
        table: None: there is none, or it is damaged.
        table_damage: what is wrong with it; None: nothing.
        volumes: the partitions in their order, or the whole disk.
        iso: the ISO 9660 file system of the whole disk, beside partitions too; None: it is not an ISO.
    """

    table: PartitionTable | None
    table_damage: str | None
    boot_records: BootRecords
    volumes: tuple[Volume, ...]
    iso: Iso9660 | None

    def find_volume(self, label: str) -> Volume | None:
        """Return the first volume whose file system has a label."""
        return next(
            (each for each in self.volumes if each.file_system and each.file_system.label == label), None
        )


def read_content(disk: VirtualDisk) -> DiskContent:
    """Return the content of a disk; damage is described, and is not an error.

    Raises:
        FormatError: the image is damaged, so that its first sector cannot be read.
    """
    table, damage = None, None
    first = disk.read_at(0, SECTOR_BYTES)
    try:
        table = read_partitions(disk.read_at, disk.virtual_size)
    except FormatError as error:
        damage = error.detail
    if table:
        volumes = tuple(_open_partition(disk, each) for each in table.partitions)
    else:
        volumes = (_open_volume(None, disk.read_at, disk.virtual_size),)
    boot_records = _read_boot_records(disk, first, table, volumes)
    return DiskContent(table, damage, boot_records, volumes, _read_iso(disk))


def _read_iso(disk: VirtualDisk) -> Iso9660 | None:
    try:
        return read_iso9660(disk.read_at, disk.virtual_size)
    except FormatError:
        return None


def _open_partition(disk: VirtualDisk, partition: Partition) -> Volume:
    span = Span(f"partition {partition.number}", partition.offset, partition.length)
    reader = SpanReader(disk.read_at, span)
    if partition.type in EXTENDED:
        return Volume(partition, None, reader, partition.length)
    return _open_volume(partition, reader, partition.length)


def _open_volume(partition: Partition | None, read_at: ReadAt, size: int) -> Volume:
    try:
        return Volume(partition, detect_file_system(read_at, size), read_at, size)
    except FormatError as error:
        return Volume(partition, None, read_at, size, error.detail)


def _read_boot_records(
    disk: VirtualDisk, first: bytes, table: PartitionTable | None, volumes: tuple[Volume, ...]
) -> BootRecords:
    partitions = table.partitions if table else ()
    bios_boot = next((each.number for each in partitions if each.type == BIOS_BOOT), None)
    system = next((each for each in volumes if _is_efi_system(each)), None)
    el_torito = b""
    if disk.virtual_size >= _EL_TORITO_OFFSET + len(_EL_TORITO):
        el_torito = disk.read_at(_EL_TORITO_OFFSET, len(_EL_TORITO))
    return BootRecords(
        boot_code=first.endswith(_BOOT_SIGNATURE) and any(first[:_BOOT_CODE_BYTES]),
        bios_boot=bios_boot,
        active=table.active if table else (),
        efi_system=system.partition.number if system and system.partition else None,
        efi_loaders=tuple(_find_loaders(system.root)) if system and system.root else (),
        el_torito=el_torito == _EL_TORITO,
    )


def _is_efi_system(volume: Volume) -> bool:
    return volume.partition is not None and volume.partition.type in {EFI_SYSTEM, MBR_EFI_SYSTEM}


def _find_loaders(root: TreeNode) -> Iterator[str]:
    try:
        names = sorted(find_node(root, _EFI_BOOT_DIRECTORY).entries())
    except (FileNotInImage, FormatError):
        return
    loaders = [name for name in names if name.upper().startswith("BOOT") and name.upper().endswith(".EFI")]
    yield from (f"{_EFI_BOOT_DIRECTORY}/{name}" for name in loaders[:_MAX_LOADERS])
