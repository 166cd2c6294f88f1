"""Reads the disk in an image of a known format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from image_service.core.formats.disk.model import DiskFormat, VirtualDisk
from image_service.core.formats.disk.qcow2 import read_qcow2
from image_service.core.formats.disk.raw import read_raw
from image_service.core.formats.disk.vhd import read_vhd
from image_service.core.formats.disk.vhdx import read_vhdx
from image_service.core.formats.disk.vmdk import read_vmdk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.core.formats.reading import ReadAt

_READERS: Final[Mapping[DiskFormat, Callable[[ReadAt, int], VirtualDisk]]] = {
    DiskFormat.RAW: read_raw,
    DiskFormat.QCOW2: read_qcow2,
    DiskFormat.VMDK: read_vmdk,
    DiskFormat.VHD: read_vhd,
    DiskFormat.VHDX: read_vhdx,
}


def read_disk(disk_format: DiskFormat, read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk in a file of ``size`` bytes.

    Of a format without tables (raw, fixed VHD) the data extents are the whole disk: only the file system that
    holds the file knows its holes.

    Raises:
        FormatError: the file is not of this format, is damaged, or needs another file. Tables are read when
            the disk is; `check_structure` reads them all.
    """
    return _READERS[disk_format](read_at, size)
