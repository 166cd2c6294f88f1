"""An xz container (The .xz File Format 1.2.1) with uncompressed content, so that all offsets are known.

12   stream header: magic, 00, 00 (no check: no byte depends on the content), CRC-32 of these two
12   block header: its length / 4 - 1, 00 (one filter), 21 01 08 (LZMA2, a dictionary of 64 KiB),
     zeros, CRC-32
…    chunks of up to 64 KiB: 01 (the first) or 02, their length less one in two bytes, big-endian, and
     the bytes as they are; 00 ends them
…    zeros up to a multiple of 4
…    index: 00, 01 (one block), the length of the block without those zeros, and that of the content, each
     as a number of 7 bits per byte, the lowest first; zeros up to a multiple of 4; CRC-32
12   footer: CRC-32, length of the index / 4 - 1 in four bytes, little-endian, 00 00, magic

All content is in one block.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from image_service.core.formats.reading import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 64 * 1024

_FLAGS = b"\0\0"
_FIRST_CHUNK, _CHUNK, _END = 1, 2, b"\0"
_CHUNK_HEADER = struct.Struct(">BH")


def _with_crc(data: bytes) -> bytes:
    return data + struct.pack("<I", zlib.crc32(data))


_STREAM_HEADER = b"\xfd7zXZ\0" + _with_crc(_FLAGS)
_BLOCK_HEADER = _with_crc(b"\x02\0\x21\x01\x08\0\0\0")


def store_in_xz(length: int) -> Iterator[bytes | Span]:
    """Yield the parts of a container: its own bytes, and the spans of its content between them.

    Args:
        length: bytes of the content.
    """
    yield _STREAM_HEADER + _BLOCK_HEADER
    kind = _FIRST_CHUNK
    for offset in range(0, length, CHUNK_BYTES):
        size = min(CHUNK_BYTES, length - offset)
        yield _CHUNK_HEADER.pack(kind, size - 1)
        yield Span("content", offset, size)
        kind = _CHUNK
    chunks = -(-length // CHUNK_BYTES)
    block = len(_BLOCK_HEADER) + chunks * _CHUNK_HEADER.size + length + len(_END)
    index = _with_crc(_pad(b"\0\x01" + _encode_number(block) + _encode_number(length)))
    backward = struct.pack("<I", len(index) // 4 - 1) + _FLAGS
    footer = struct.pack("<I", zlib.crc32(backward)) + backward + b"YZ"
    yield _END + bytes(-block % 4) + index + footer


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _encode_number(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits of each byte
        encoded.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes([*encoded, number])
