"""The embedded descriptor of a VMDK that qemu-img wrote: made equal for equal content."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from image_service.core.errors import ConversionFailed
from image_service.core.formats.disk.model import SECTOR_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_MAX_SECTORS = 2048
_RANDOM = re.compile(rb'^CID=[0-9a-f]{1,8}$|(?<= SPARSE )"[^\n]*"$', re.MULTILINE)


def normalize_descriptor(path: Path) -> None:
    """Replace the content id and the name of the file, which differ between two conversions of one disk.

    Nothing depends on either: the content id is compared with a snapshot's record of its parent, and an
    embedded descriptor is about the file that it is in, whatever name that has. VMware gives all new disks
    this id.

    Raises:
        ConversionFailed: the file is not a VMDK with an embedded descriptor.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        header = os.pread(descriptor, SECTOR_BYTES, 0)
        sector, sectors = (int.from_bytes(header[at : at + 8], "little") for at in (28, 36))
        if header[:4] != b"KDMV" or not 0 < sectors <= _MAX_SECTORS:
            raise ConversionFailed("qemu-img wrote no VMDK with an embedded descriptor")
        length = sectors * SECTOR_BYTES
        # It ends with a zero; behind that may be the end of a longer one, which qemu-img wrote before.
        text = os.pread(descriptor, length, sector * SECTOR_BYTES).partition(b"\0")[0]
        normal, count = _RANDOM.subn(
            lambda match: b"CID=fffffffe" if match[0].startswith(b"CID") else b'"disk.vmdk"', text
        )
        if count != 2 or len(normal) > length:  # noqa: PLR2004 - the two that are replaced
            raise ConversionFailed("the descriptor of the VMDK that qemu-img wrote has not the usual lines")
        os.pwrite(descriptor, normal.ljust(length, b"\0"), sector * SECTOR_BYTES)
    finally:
        os.close(descriptor)
