"""Decompressors with a bound on their output.

zlib, xz and zstd streams are read whole. LZ4 blocks and MicroLZMA do not mark their end: their decompressors
return as many bytes as they are asked for.

An LZ4 block is a sequence of

    1   token: number of literals in the high half, length of the match less 4 in the low one
    …   where the half is 15: bytes to add to it, up to the first that is not 255
        (those for the literals come here, those for the match after the distance)
    …   literals
    2   distance of the match, little-endian; the last sequence ends before it

MicroLZMA, as erofs stores it, is LZMA without a header; the complement of the properties replaces the first
byte, which is always 0.
"""

from __future__ import annotations

import lzma
import sys
import zlib
from collections.abc import Callable
from typing import TypeAlias

from image_service.errors import FormatError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Decompressor: TypeAlias = Callable[[bytes, int], bytes]
"""(packed, length) to at most that many bytes."""

_MAX_XZ_MEMORY = 32 * 1024 * 1024  # bytes; squashfs has dictionaries of 1 MiB at most
_MAX_ZSTD_WINDOW = 23  # as a power of two: RFC 8878 section 3.1.1.1.2 asks for 8 MiB, squashfs for 1 MiB
_MAX_HALF = 15
_MIN_MATCH = 4


class _DamagedError(Exception):
    """The data is invalid, or longer than allowed, in a way that no library reports."""


_DAMAGES = (zlib.error, lzma.LZMAError, zstd.ZstdError, IndexError, _DamagedError)


def decompress(method: Decompressor, packed: bytes, length: int, where: str) -> bytes:
    """Decompress by ``method``; FormatError if the data is damaged or its output exceeds ``length`` bytes."""
    try:
        return method(packed, length)
    except _DAMAGES:
        raise FormatError(f"{where} is damaged: its {len(packed)} bytes cannot be decompressed") from None


def decompress_zlib(packed: bytes, length: int) -> bytes:
    """Decompress a zlib stream to at most ``length`` bytes."""
    stream = zlib.decompressobj()
    return _check_whole(stream.decompress(packed, length + 1), length, ended=stream.eof)


def decompress_xz(packed: bytes, length: int) -> bytes:
    """Decompress an xz stream to at most ``length`` bytes."""
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY)
    return _check_whole(stream.decompress(packed, length + 1), length, ended=stream.eof)


def decompress_zstd(packed: bytes, length: int) -> bytes:
    """Decompress a zstd frame to at most ``length`` bytes."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_ZSTD_WINDOW}
    stream = zstd.ZstdDecompressor(options=options)
    return _check_whole(stream.decompress(packed, length + 1), length, ended=stream.eof)


def _check_whole(content: bytes, length: int, *, ended: bool) -> bytes:
    if len(content) > length or not ended:
        raise _DamagedError
    return content


def decompress_lz4(packed: bytes, length: int) -> bytes:
    """Decompress the first ``length`` bytes of an LZ4 block, or all if it has fewer."""
    content = bytearray()
    position = 0
    while True:
        token = packed[position]
        literals, position = _read_lz4_length(packed, position + 1, token >> 4)
        content += packed[position : position + literals]
        position += literals
        if position >= len(packed) or len(content) >= length:
            return bytes(content[:length])
        distance = packed[position] | packed[position + 1] << 8
        match, position = _read_lz4_length(packed, position + 2, token & _MAX_HALF)
        match = min(match + _MIN_MATCH, length - len(content))
        start = len(content) - distance
        if start < 0 or not distance:
            raise _DamagedError
        if distance >= match:
            content += content[start : start + match]
        else:  # the match reaches into what it adds
            content += (content[start:] * (match // distance + 1))[:match]


def _read_lz4_length(packed: bytes, position: int, length: int) -> tuple[int, int]:
    """Return the length that ``length``, a half of the token, starts; and the position after it."""
    more = length == _MAX_HALF
    while more:
        length += packed[position]
        more = packed[position] == 0xFF  # noqa: PLR2004 - the format's own
        position += 1
    return length, position


def microlzma_decompressor(dictionary: int) -> Decompressor:
    """Return a decompressor of MicroLZMA with ``dictionary`` bytes of memory."""

    def decompress_microlzma(packed: bytes, length: int) -> bytes:
        position_bits, literal_bits = divmod(~packed[0] & 0xFF, 9)
        lzma1 = {
            "id": lzma.FILTER_LZMA1,
            "dict_size": dictionary,
            "lc": literal_bits,
            "lp": position_bits % 5,
            "pb": position_bits // 5,
        }
        stream = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma1])
        return stream.decompress(b"\0" + packed[1:], length)

    return decompress_microlzma
