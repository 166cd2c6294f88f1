"""The model of all formats of disk images: a disk of bytes, most of which may be zeros."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt

SECTOR_BYTES = 512

MAX_DISK_BYTES = 1 << 46
"""64 TiB: the most that VHDX can have, and VMDK less. It bounds the tables of an image."""

DataExtents: TypeAlias = Callable[[], Iterator[tuple[int, int]]]
"""() to (offset, length) of the disk's bytes that may be other than zero: ascending, neither touching."""


class DiskFormat(enum.Enum):
    """A format of disk images, by the name that a user writes."""

    RAW = "raw"
    QCOW2 = "qcow2"
    VMDK = "vmdk"
    VHD = "vhd"
    VHDX = "vhdx"


@attrs.frozen(eq=False)
class VirtualDisk:
    """The disk in an image.

    Args:
        subformat: as the specification names it (``dynamic``, ``streamOptimized``); "" if it has none.
        virtual_size: bytes of the disk, at most `MAX_DISK_BYTES`.
        read_at: reads the disk, not the file; FormatError if the image is damaged.
        data_extents: lists offset and length of bytes that may be other than zeros.
        sector_bytes: of the disk, as the image states it.
    """

    format: DiskFormat
    subformat: str
    virtual_size: int
    read_at: ReadAt
    data_extents: DataExtents
    sector_bytes: int = SECTOR_BYTES


def check_structure(disk: VirtualDisk) -> int:
    """Return how many bytes `VirtualDisk.data_extents` has in all, after each structure was checked.

    Every table is read once, and no data: the time is that of reading the tables which the file has, whatever
    size the disk claims. Readers skip blocks that no table covers and refuse a table that two entries refer
    to. For each block of the file they hold one byte, and they refuse a file of too many blocks.

    Raises:
        FormatError: a structure is outside the file, overlaps another, or has a reserved value.
    """
    return sum(length for _, length in disk.data_extents())
