"""Which format a file has, by its first and last bytes: all that some program would take it for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.core.formats.disk.ova import is_old_tar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

_DESCRIPTOR_BYTES = 4096  # of a VMDK descriptor's start; qemu looks at 512


@attrs.frozen
class _Signature:
    """Bytes by which a program knows a format.

    Args:
        content: the name of the format.
        magic: the bytes.
        offset: their place in the file; a negative one is from its end.
    """

    content: str
    magic: bytes
    offset: int = 0


_IMAGES = (
    _Signature("qcow2", b"QFI\xfb"),
    _Signature("vmdk", b"KDMV"),
    _Signature("vmdk", b"COWD"),
    _Signature("sesparse", b"\xbe\xba\xfe\xca\0\0\0\0"),
    _Signature("vhd", b"conectix"),
    _Signature("vhd", b"conectix", -SECTOR_BYTES),
    _Signature("vhdx", b"vhdxfile"),
    _Signature("vdi", b"\x7f\x10\xda\xbe", 64),
    _Signature("qed", b"QED\0"),
    _Signature("luks", b"LUKS\xba\xbe"),
    _Signature("parallels", b"WithoutFreeSpace"),
    _Signature("parallels", b"WithouFreSpacExt"),
    _Signature("bochs", b"Bochs Virtual HD Image"),
    _Signature("cloop", b"#!/bin/sh\n#V2.0 Format\n"),
    _Signature("dmg", b"koly", -SECTOR_BYTES),
)
_OTHERS = (
    _Signature("ova", b"ustar", 257),
    _Signature("gzip", b"\x1f\x8b\x08"),
    _Signature("xz", b"\xfd7zXZ\0"),
    _Signature("zstd", b"\x28\xb5\x2f\xfd"),
    *(_Signature("bzip2", b"BZh%d1AY&SY" % level) for level in range(1, 10)),
    _Signature("lz4", b"\x04\x22\x4d\x18"),
    _Signature("zip", b"PK\x03\x04"),
    _Signature("7z", b"7z\xbc\xaf\x27\x1c"),
)


def detect_images(read_at: ReadAt, size: int) -> set[str]:
    """Return the formats of disk images that the bytes have a signature of, by name; none: raw."""
    found = set(_match(_IMAGES, read_at, size))
    if _is_vmdk_descriptor(read_at(0, min(size, _DESCRIPTOR_BYTES))):
        found.add("vmdk")
    return found


def detect_others(read_at: ReadAt, size: int) -> set[str]:
    """Return the archives and compressed files that the bytes have a signature of; a tar is ``ova``."""
    found = set(_match(_OTHERS, read_at, size))
    return found | {"ova"} if size >= SECTOR_BYTES and is_old_tar(read_at) else found


def _match(signatures: tuple[_Signature, ...], read_at: ReadAt, size: int) -> Iterator[str]:
    for signature in signatures:
        offset = signature.offset if signature.offset >= 0 else size + signature.offset
        length = len(signature.magic)
        if 0 <= offset <= size - length and read_at(offset, length) == signature.magic:
            yield signature.content


def _is_vmdk_descriptor(head: bytes) -> bool:
    """Return True if qemu takes a text for a VMDK descriptor: a version behind comments and empty lines."""
    for line in head.split(b"\n"):
        text = line.strip(b" \t\r").lower()
        if text.startswith(b"#"):
            if text.startswith(b"# disk descriptorfile"):
                return True
        elif text:
            return text.startswith(b"version=")
    return False
