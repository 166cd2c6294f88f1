"""Decompressors that write no more than they are allowed to.

zlib, xz and zstd streams are read whole. LZ4 blocks and MicroLZMA do not mark their end: their decompressors
return as many bytes as they are asked for.

An LZ4 block is a sequence of

    1   token: number of literals in the high half, length of the match less 4 in the low one
    …   where the half is 15: bytes to add to it, up to the first that is not 255
        (those for the literals come here, those for the match behind the distance)
    …   literals
    2   distance of the match, little-endian; the last sequence ends before it

"MicroLZMA", as erofs has it, is LZMA without a header, whose first byte, always 0, gave way to the
properties' complement.
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
"""(packed, length) to at most that many bytes of what it unpacks to."""

_MAX_XZ_MEMORY = 32 * 1024 * 1024  # bytes; squashfs has dictionaries of 1 MiB at most
_MAX_ZSTD_WINDOW = 23  # as a power of two: RFC 8878 section 3.1.1.1.2 asks for 8 MiB, squashfs for 1 MiB
_MAX_HALF = 15
_MIN_MATCH = 4


class _Damaged(Exception):
    """What is found before, or beside, what the libraries find."""


_DAMAGES = (zlib.error, lzma.LZMAError, zstd.ZstdError, IndexError, _Damaged)


def decompress(method: Decompressor, packed: bytes, length: int, where: str) -> bytes:
    """Decompressor by one of the methods of this module.

    Args:
        method: which.
        packed: compressed data.
        length: bytes that it may, or shall, unpack to.
        where: what messages call it.

    Returns:
        at most that many bytes.

    Raises:
        FormatError: the data is damaged, or unpacks to more than it may.
    """
    try:
        return method(packed, length)
    except _DAMAGES:
        raise FormatError(f"{where} is damaged: its {len(packed)} bytes cannot be unpacked") from None


def decompress_zlib(packed: bytes, length: int) -> bytes:
    """Decompressor a zlib stream of at most ``length`` bytes."""
    stream = zlib.decompressobj()
    return _whole(stream.decompress(packed, length + 1), length, ended=stream.eof)


def decompress_xz(packed: bytes, length: int) -> bytes:
    """Decompressor an xz stream of at most ``length`` bytes."""
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY)
    return _whole(stream.decompress(packed, length + 1), length, ended=stream.eof)


def decompress_zstd(packed: bytes, length: int) -> bytes:
    """Decompressor a zstd frame of at most ``length`` bytes."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_ZSTD_WINDOW}
    stream = zstd.ZstdDecompressor(options=options)
    return _whole(stream.decompress(packed, length + 1), length, ended=stream.eof)


def decompress_lz4(packed: bytes, length: int) -> bytes:
    """Decompressor the first ``length`` bytes of an LZ4 block; fewer where it has no more."""
    unpacked = bytearray()
    position = 0
    while True:
        token = packed[position]
        literals, position = _lz4_length(packed, position + 1, token >> 4)
        unpacked += packed[position : position + literals]
        position += literals
        if position >= len(packed) or len(unpacked) >= length:
            return bytes(unpacked[:length])
        distance = packed[position] | packed[position + 1] << 8
        match, position = _lz4_length(packed, position + 2, token & _MAX_HALF)
        _repeat(unpacked, distance, min(match + _MIN_MATCH, length - len(unpacked)))


def microlzma_decompressor(dictionary: int) -> Decompressor:
    """Make a method for MicroLZMA.

    Args:
        dictionary: bytes of the decoder's memory.
    """

    def unpack_lzma(packed: bytes, length: int) -> bytes:
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

    return unpack_lzma


def _whole(unpacked: bytes, length: int, *, ended: bool) -> bytes:
    if len(unpacked) > length or not ended:
        raise _Damaged
    return unpacked


def _lz4_length(packed: bytes, position: int, length: int) -> tuple[int, int]:
    """A length that its half of the token begins, and the position behind it."""
    more = length == _MAX_HALF
    while more:
        length += packed[position]
        more = packed[position] == 0xFF  # noqa: PLR2004 - the format's own
        position += 1
    return length, position


def _repeat(unpacked: bytearray, distance: int, length: int) -> None:
    """Add what lies ``distance`` back; it may reach into what it adds."""
    start = len(unpacked) - distance
    if start < 0 or not distance:
        raise _Damaged
    if distance >= length:
        unpacked += unpacked[start : start + length]
    else:
        unpacked += (unpacked[start:] * (length // distance + 1))[:length]
