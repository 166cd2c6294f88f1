"""Compressed archives, as the kernel accepts them for its initial file system.

`compress_archive` tries these forms in order and returns the first that fits:

1. gzip with stored blocks, not compressed at all. It is written here, so its bytes depend on no library: they
   are the same on every machine and after every upgrade. Most configs fit their area in this form.
2. gzip with deflate's Huffman codes, without a search for repeats: enough for base64 and JSON that is
   slightly too large. Only as much is coded as necessary, and the rest is stored. They are written in
   `deflate`, so this form too is the same everywhere.
3. gzip with deflate at level 9. The bytes of this form are zlib's, whose builds differ.
4. xz at preset 9 with a CRC32 check, the only check that the kernel's decoder supports: it skips an archive
   with any other, and boots without the config. It finds repeats further apart than deflate's 32 KiB, and is
   by far the slowest.

Every kernel reads gzip; older ones lack zstd, so it is never written.

`read_archives` reads the same as the kernel: gzip, xz or plain cpio archives, one after another, with any
number of zero bytes around them. What every kernel skips, such as xz with CRC64, is refused.
"""

from __future__ import annotations

import lzma
import re
import stat
import struct
import zlib
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.formats.deflate import deflate_within, store_blocks
from image_service.core.formats.initrd_compression import HEAD_BYTES, find_doubt
from image_service.core.formats.newc import read_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from image_service.core.formats.newc import Member

MAX_DECOMPRESSED = 64 * 1024 * 1024
"""The limit in bytes of the decompressed archives of one initrd."""

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BYTES = 18  # before and after the stream
_XZ_MAGIC = b"\xfd7zXZ\0"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_NOT_ZERO = re.compile(rb"[^\0]")
_MIN_DICTIONARY = 4096
_MAX_DECODER_MEMORY = 128 * 1024 * 1024  # preset 9 needs 65 MiB
_CHUNK = 4096  # xz expands up to 7000 times


def compress_archive(
    archive: bytes, capacity: int, deflate: Callable[[bytes, int], bytes] = deflate_within
) -> bytes:
    """Return a newc archive in the first form that fits ``capacity`` bytes; if none does, in the smallest.

    Args:
        capacity: bytes.
        deflate: makes the stream of the second form, in so many bytes if it can.
    """
    forms = _compressed_forms(archive, capacity, deflate)
    smallest = next(forms)
    while len(smallest) > capacity and (form := next(forms, None)):
        smallest = min(smallest, form, key=len)
    return smallest


def store_archive(archive: bytes) -> bytes:
    """Return a newc archive in the first form, which is the fastest."""
    # Blocks are views: an archive with nmstatectl has some 30 MB, which are copied only once like this.
    return _gzip(store_blocks(archive), archive, extra_flags=0)


def _compressed_forms(
    archive: bytes, capacity: int, deflate: Callable[[bytes, int], bytes]
) -> Iterator[bytes]:
    yield store_archive(archive)
    yield _gzip([deflate(archive, capacity - _GZIP_BYTES)], archive, extra_flags=4)
    yield _gzip([zlib.compress(archive, level=9, wbits=-15)], archive, extra_flags=2)
    # Preset 9 has a dictionary of 64 MiB, which the decoder must hold; the archive's own size is enough.
    dictionary = max(len(archive), _MIN_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}]
    yield lzma.compress(archive, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)


def _gzip(deflated: Iterable[bytes | memoryview], archive: bytes, extra_flags: int) -> bytes:
    """RFC 1952 without name, time and operating system: the bytes depend on the content alone."""
    header = struct.pack("<2sBBIBB", _GZIP_MAGIC, 8, 0, 0, extra_flags, 255)
    return b"".join([header, *deflated, struct.pack("<II", zlib.crc32(archive), len(archive) & 0xFFFFFFFF)])


def read_members(initrd: bytes, limit: int = MAX_DECOMPRESSED) -> dict[str, Member]:
    """Return the regular files of an initrd by name, the last of each name; see `read_archives`."""
    members = read_archives(initrd, limit)
    return {member.name: member for member in members if stat.S_ISREG(member.mode)}


def read_archives(initrd: bytes, limit: int = MAX_DECOMPRESSED) -> list[Member]:
    """Return all members of an initrd in order: files, directories, links and so on.

    Args:
        initrd: archives, with zero bytes before, between and after them.
        limit: bytes of the decompressed archives together.

    Raises:
        FormatError: an archive is damaged, too large, or in a form that every kernel skips, or that is not
            read here.
    """
    members: list[Member] = []
    position = 0
    while found := _NOT_ZERO.search(initrd, position):
        position = found.start()
        where = f"the archive at offset {position} of the initrd"
        if initrd.startswith(_ZSTD_MAGIC, position):
            raise FormatError(f"{where} is zstd, which is not supported")
        find_doubt(initrd[position : position + HEAD_BYTES], position, where)
        if initrd.startswith((_GZIP_MAGIC, _XZ_MAGIC), position):
            archive, position = _decompress(initrd, position, limit)
            limit -= len(archive)
            archived, end = read_archive(archive)
            if _NOT_ZERO.search(archive, end):
                raise FormatError("a compressed archive of the initrd has data after its end")
        else:
            archived, position = read_archive(initrd, position)
        members += archived
    return members


def _decompress(initrd: bytes, start: int, limit: int) -> tuple[bytes, int]:
    """Return the content of the gzip or xz archive at ``start``, and the offset after the archive."""
    decompressor = (
        zlib.decompressobj(wbits=31)
        if initrd.startswith(_GZIP_MAGIC, start)
        else lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DECODER_MEMORY)
    )
    content = bytearray()
    position = start
    while not decompressor.eof:
        chunk = initrd[position : position + _CHUNK]
        if not chunk:
            raise FormatError(f"the initrd ends within the archive at offset {start}")
        position += len(chunk)
        try:
            content += decompressor.decompress(chunk)
        except (zlib.error, lzma.LZMAError):
            raise FormatError(f"the archive at offset {start} of the initrd is damaged") from None
        if len(content) > limit:
            raise FormatError(f"the initrd exceeds {limit} decompressed bytes at offset {start}")
    return bytes(content), position - len(decompressor.unused_data)
