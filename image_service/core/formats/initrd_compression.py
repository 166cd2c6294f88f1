"""Which compressed archives of an initrd the Linux kernel unpacks.

The kernel has a decoder of its own for each compression, which its configuration may leave out
(CONFIG_RD_GZIP, CONFIG_RD_XZ, …). gzip and xz are in that of every distribution with live ISOs. The decoders
read less than the programs that have the same names:

    gzip    no header field but a file name (FNAME of RFC 1952 section 2.3.1)
    xz      no check but CRC32, or none; LZMA2, and BCJ filters if configured, but no delta filter
    lz4     the legacy frame alone, which `lz4 -l` writes
    zstd    from Linux 5.9 on; a window of at most 128 MiB

An archive that a decoder does not read is skipped, and the machine boots without its files.
"""

from __future__ import annotations

from image_service.core.errors import FormatError, FormatUnread
from image_service.core.formats.newc import NEWC_MAGIC, NEWC_MAGICS

HEAD_BYTES = 64
"""That `find_doubt` needs; the fields that it reads are in them."""

_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\0"
_LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_LZO_MAGIC = b"\x89LZO"
_ALIGNMENT = 4  # of an archive that is not compressed
_OPTIONAL = {
    b"\x28\xb5\x2f\xfd": ("zstd", "before 5.9, and those without CONFIG_RD_ZSTD,"),
    b"BZh": ("bzip2", "without CONFIG_RD_BZIP2"),
    b"\x02\x21\x4c\x18": ("LZ4", "without CONFIG_RD_LZ4"),
    b"\x5d\0": ("LZMA", "without CONFIG_RD_LZMA"),
    b"070702": ("newc with checksums", "before 5.19"),
}
"""The beginnings of archives that some kernels skip: their names, and which kernels."""
_GZIP_NAME = 8
_XZ_CHECKS = {0: "none", 1: "CRC32", 4: "CRC64", 10: "SHA-256"}
_XZ_READ = (0, 1)
_XZ_FILTERS = 13
"""Offset of the number of filters, after the stream's header and the length of the block's."""
_XZ_DELTA, _XZ_LZMA2 = 0x03, 0x21


def is_archive(head: bytes) -> bool:
    """Return True if bytes begin like an archive that some kernel reads."""
    return head.startswith((NEWC_MAGIC, _GZIP_MAGIC, _XZ_MAGIC, _LZO_MAGIC, _LZ4_FRAME_MAGIC, *_OPTIONAL))


def find_doubt(head: bytes, position: int, where: str) -> str | None:
    """Return why some kernels skip an archive; None: all kernels of live ISOs read this form.

    Args:
        head: the first `HEAD_BYTES` of the archive.
        position: offset of the archive in the initrd.
        where: the archive, for messages.

    Raises:
        FormatUnread: a kernel may read it, but this program does not.
        FormatError: every kernel skips it.
    """
    if head.startswith(NEWC_MAGICS) and position % _ALIGNMENT:
        raise FormatError(f"{where} is not at a multiple of {_ALIGNMENT}, as the kernel requires")
    if head.startswith(_GZIP_MAGIC):
        _check_gzip(head, where)
    if head.startswith(_XZ_MAGIC):
        return _check_xz(head, where)
    if head.startswith(_LZ4_FRAME_MAGIC):
        raise FormatError(f"{where} is an LZ4 frame that the kernel does not read; use lz4 -l")
    if head.startswith(_LZO_MAGIC):
        raise FormatUnread(f"{where} is LZO, which kernels without CONFIG_RD_LZO skip")
    for magic, (form, kernels) in _OPTIONAL.items():
        if head.startswith(magic):
            return f"{where} is {form}, which kernels {kernels} skip; gzip is read by all"
    return None


def _check_gzip(head: bytes, where: str) -> None:
    flags = head[3:4]
    if flags and flags[0] & ~(_GZIP_NAME | 1):  # the kernel ignores the flag for text too
        raise FormatError(
            f"{where} is gzip with header fields (flags {flags[0]:#04x}) that the kernel does not read;"
            " use gzip"
        )


def _check_xz(head: bytes, where: str) -> str | None:
    check = int.from_bytes(head[7:8], "big") & 0x0F
    if check not in _XZ_READ:
        name = _XZ_CHECKS.get(check, f"check {check}")
        raise FormatError(f"{where} is xz with {name}, which the kernel does not read; use xz --check=crc32")
    filters = _xz_filters(head)
    if _XZ_DELTA in filters:
        raise FormatError(
            f"{where} is xz with a delta filter, which the kernel does not read; use xz --check=crc32"
        )
    if set(filters) - {_XZ_LZMA2}:
        return (
            f"{where} is xz with a filter for one processor's programs, which kernels without its"
            " CONFIG_XZ_DEC_… skip"
        )
    return None


def _xz_filters(head: bytes) -> list[int]:
    """Return the filters of the first block (The .xz File Format, sections 3.1.2 and 3.1.5)."""
    if len(head) <= _XZ_FILTERS or not head[_XZ_FILTERS - 1]:  # cut, or an index: there is no block
        return []
    flags, position = head[_XZ_FILTERS], _XZ_FILTERS + 1
    for has_size in (flags & 0x40, flags & 0x80):
        if has_size:
            position = _skip_number(head, position)
    filters: list[int] = []
    for _ in range((flags & 3) + 1):
        filters += head[position : position + 1]  # all of the kernel's have an identifier of one byte
        position += 2 + int.from_bytes(head[position + 1 : position + 2], "big")
    return filters


def _skip_number(head: bytes, position: int) -> int:
    """Return the offset after a number of seven bits a byte."""
    while head[position : position + 1] > b"\x7f":
        position += 1
    return position + 1
