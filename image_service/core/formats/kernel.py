"""The architecture of a Linux kernel, by its first bytes.

gzip       older aarch64: one of the following, compressed
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

HEAD_BYTES = 65536 + 16
"""The bytes at the start of a kernel that show its architecture."""

_GZIP, _DOS, _PE, _LITTLE_ELF, _S390 = b"\x1f\x8b", b"MZ", b"PE\0\0", b"\x7fELF\x02\x01", b"S390EP"
_PE_OFFSET, _ELF_MACHINE, _S390_OFFSET = 60, 18, 65544
_PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
_ELF_MACHINES = {21: "ppc64le"}


def detect_kernel_architecture(head: bytes) -> str | None:
    """Return the RPM architecture name of a kernel by its first `HEAD_BYTES`; None if it is unknown."""
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error:
            return None
    if head.startswith(_DOS):
        header = _number("<I", head, _PE_OFFSET)
        known = head[header : header + len(_PE)] == _PE
        return _PE_MACHINES.get(_number("<H", head, header + len(_PE))) if known else None
    if head.startswith(_LITTLE_ELF):
        return _ELF_MACHINES.get(_number("<H", head, _ELF_MACHINE))
    return "s390x" if head[_S390_OFFSET:].startswith(_S390) else None


def _number(layout: str, head: bytes, offset: int) -> int:
    """Return the number at ``offset``; 0, which names no machine, past the end of the head."""
    size = struct.calcsize(layout)
    found: int = struct.unpack(layout, head[offset : offset + size].ljust(size, b"\0"))[0]
    return found
