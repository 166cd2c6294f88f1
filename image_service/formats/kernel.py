"""For which machines a Linux kernel is, by its first bytes.

gzip       older aarch64: what is below, compressed
PE         x86_64, aarch64: begins with MZ, little-endian numbers
  60   4   offset of the PE header:
  +0   4   PE and two zero bytes
  +4   2   machine
ELF        ppc64le: begins with 127 and ELF, little-endian numbers
  5    1   1
  18   2   machine
s390x
  65544    S390EP
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_service.coreos.live_iso import BootFiles
    from image_service.formats.reading import ReadAt

HEAD_BYTES = 65536 + 16
"""What is looked at of a kernel."""

_GZIP, _DOS, _PE, _LITTLE_ELF, _S390 = b"\x1f\x8b", b"MZ", b"PE\0\0", b"\x7fELF\x02\x01", b"S390EP"
_PE_OFFSET, _ELF_MACHINE, _S390_OFFSET = 60, 18, 65544
_PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
_ELF_MACHINES = {21: "ppc64le"}


def read_architecture(read_at: ReadAt, files: BootFiles) -> str | None:
    """Tell for which machines a live ISO is.

    Args:
        read_at: reads the ISO.
        files: of the ISO.

    Returns:
        RPM architecture name; None: nothing tells.
    """
    if files.ins_file:
        return "s390x"
    if files.kernel is None:
        return None
    return kernel_architecture(read_at(files.kernel.offset, min(files.kernel.length, HEAD_BYTES)))


def kernel_architecture(head: bytes) -> str | None:
    """Tell for which machines a kernel is.

    Args:
        head: its first `HEAD_BYTES`.

    Returns:
        RPM architecture name; None: it is none that is known here.
    """
    if head.startswith(_GZIP):
        head = _unpacked(head)
    if head.startswith(_DOS):
        header = _number("<I", head, _PE_OFFSET)
        known = head[header : header + len(_PE)] == _PE
        return _PE_MACHINES.get(_number("<H", head, header + len(_PE))) if known else None
    if head.startswith(_LITTLE_ELF):
        return _ELF_MACHINES.get(_number("<H", head, _ELF_MACHINE))
    return "s390x" if head[_S390_OFFSET:].startswith(_S390) else None


def _unpacked(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return b""


def _number(layout: str, head: bytes, offset: int) -> int:
    """The number at ``offset``; 0 where the head has ended, which is no machine."""
    size = struct.calcsize(layout)
    found: int = struct.unpack(layout, head[offset : offset + size].ljust(size, b"\0"))[0]
    return found
