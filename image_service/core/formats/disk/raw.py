"""Raw images: the file is the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.formats.disk.block_map import check_virtual_size
from image_service.core.formats.disk.model import DiskFormat, VirtualDisk

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt


def read_raw(read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk of a file of ``size`` bytes, all of which may be other than zero."""
    return flat_disk(DiskFormat.RAW, "", read_at, size)


def flat_disk(disk_format: DiskFormat, subformat: str, read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk that is the first ``size`` bytes of a file."""
    check_virtual_size(size)

    def read(offset: int, length: int) -> bytes:
        return read_at(offset, max(0, min(length, size - offset)))

    return VirtualDisk(disk_format, subformat, size, read, lambda: iter([(0, size)] if size else []))
