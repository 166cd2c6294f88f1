"""Decompressors with a bound on their output.

zlib, deflate, xz and zstd streams are read whole. LZ4 blocks and MicroLZMA do not mark their end: their
decompressors return as many bytes as they are asked for.

An LZ4 block is a sequence of

    1   token: number of literals in the high half, length of the match less 4 in the low one
    …   where the half is 15: bytes to add to it, up to the first that is not 255
        (those for the literals come here, those for the match after the distance)
    …   literals
    2   distance of the match, little-endian; the last sequence ends before it

MicroLZMA, as erofs stores it, is LZMA without a header; the complement of the properties replaces the first
byte, which is always 0.

`DecompressedStream` reads content too long for memory: gzip, xz, zstd, bzip2, LZMA, and LZ4's "legacy"
frames, as the kernel reads them:

    4   02 21 4c 18
    …   blocks of up to 8 MiB: 4 bytes with the packed length, little-endian, and an LZ4 block

up to the end of the file, or to four bytes that are not the length of a block.
"""

from __future__ import annotations

import bz2
import lzma
import re
import sys
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from image_service.core.errors import FormatError, FormatUnread

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

Decompressor: TypeAlias = Callable[[bytes, int], bytes]
"""(packed, length) to at most that many bytes."""

_MAX_XZ_MEMORY = 32 * 1024 * 1024  # bytes; squashfs has dictionaries of 1 MiB at most
_MAX_ZSTD_WINDOW = 23  # as a power of two: RFC 8878 section 3.1.1.1.2 asks for 8 MiB, squashfs for 1 MiB
_MAX_HALF = 15
_MIN_MATCH = 4

# The kernel reads such initrds: xz of preset 9 needs 65 MiB, zstd's window (ZSTD_WINDOWSIZE_MAX) 128 MiB.
_MAX_STREAM_MEMORY = 128 * 1024 * 1024
_MAX_STREAM_ZSTD_WINDOW = 27
_NEEDS_MEMORY = re.compile("memory", re.IGNORECASE)  # liblzma's and libzstd's texts have no code
_MAX_LZ4_BLOCK = 8 * 1024 * 1024
_MAX_PACKED_LZ4_BLOCK = _MAX_LZ4_BLOCK + _MAX_LZ4_BLOCK // 255 + 16  # LZ4_COMPRESSBOUND
_LZ4_LENGTH = 4
_PACKED_CHUNK = 64 * 1024
_CHUNK = 256 * 1024


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


def decompress_deflate(packed: bytes, length: int) -> bytes:
    """Decompress a deflate stream (no zlib header) to at most ``length`` bytes; the rest is ignored."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
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
        else:  # the match overlaps its own output
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


class StreamDecompressor(Protocol):
    """Decompresses a stream in pieces, as the classes of lzma, bz2 and zstd do."""

    @property
    def eof(self) -> bool:
        """True once the end of the stream was read."""

    @property
    def needs_input(self) -> bool:
        """True if further data is needed before more content comes."""

    @property
    def unused_data(self) -> bytes:
        """The bytes behind the end of the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return at most ``max_length`` further bytes; LZ4: a block."""


class _GzipDecompressor:
    """zlib's, with the interface of the others."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, max_length)


class _Lz4Decompressor:
    """Decompresses legacy frames, block by block."""

    def __init__(self) -> None:
        self.eof = False
        self.unused_data = b""
        self._packed = bytearray()
        self._started = False

    @property
    def needs_input(self) -> bool:
        length = self._block_length()
        return length is None or length > len(self._packed) - _LZ4_LENGTH

    def decompress(self, data: bytes, _max_length: int) -> bytes:
        self._packed += data
        if not self._started and len(self._packed) >= len(_LZ4_MAGIC):
            self._started = True
            del self._packed[: len(_LZ4_MAGIC)]
        length = self._block_length()
        if (not data and not self._packed) or length == 0 or (length or 0) > _MAX_PACKED_LZ4_BLOCK:
            self.eof, self.unused_data = True, bytes(self._packed)
        if self.eof or length is None or self.needs_input:
            return b""
        block = bytes(self._packed[_LZ4_LENGTH : _LZ4_LENGTH + length])
        del self._packed[: _LZ4_LENGTH + length]
        return decompress_lz4(block, _MAX_LZ4_BLOCK)

    def _block_length(self) -> int | None:
        known = self._started and len(self._packed) >= _LZ4_LENGTH
        return int.from_bytes(self._packed[:_LZ4_LENGTH], "little") if known else None


def _zstd_stream() -> StreamDecompressor:
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_STREAM_ZSTD_WINDOW}
    return zstd.ZstdDecompressor(options=options)


_LZ4_MAGIC = b"\x02\x21\x4c\x18"
_LZMA_MAGIC = b"\x5d\0"  # the kernel's; too short to tell any file by
_STREAMS: dict[bytes, Callable[[], StreamDecompressor]] = {
    b"\x1f\x8b": _GzipDecompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_STREAM_MEMORY),
    b"\x28\xb5\x2f\xfd": _zstd_stream,
    b"BZh": bz2.BZ2Decompressor,
    _LZ4_MAGIC: _Lz4Decompressor,
}
_INITRD_STREAMS: dict[bytes, Callable[[], StreamDecompressor]] = {
    **_STREAMS,
    _LZMA_MAGIC: lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_MAX_STREAM_MEMORY),
}


def is_compressed(read_at: ReadAt) -> bool:
    """Return True if a file begins as one `DecompressedStream` reads; False for LZMA, which has no mark."""
    return read_at(0, max(map(len, _STREAMS))).startswith(tuple(_STREAMS))


class DecompressedStream:
    """Iterates over the content of a compressed stream, which is too long for memory.

    Args:
        read_at: reads the file; 64 KiB at once.
        start: offset of the stream.
        limit: bytes of the content.
        where: the name of the file, for messages.
    """

    def __init__(self, read_at: ReadAt, start: int, limit: int, where: str) -> None:
        self.position = start
        """The offset after the bytes read so far; after the iteration, that after the stream."""
        self.length = 0
        """Bytes of the content so far."""
        self._read_at = read_at
        self._limit = limit
        self._where = f"the compressed data at offset {start} of {where}"

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content.

        Raises:
            FormatUnread: it exceeds the limit, or needs too much memory.
            FormatError: it is damaged, ends too soon, or is compressed in another way.
        """
        stream = self._open()
        while not stream.eof:
            packed = self._read_at(self.position, _PACKED_CHUNK) if stream.needs_input else b""
            self.position += len(packed)
            ended = stream.needs_input and not packed
            try:
                content = stream.decompress(packed, _CHUNK)
            except (*_DAMAGES, OSError) as error:  # OSError is bz2's
                if _NEEDS_MEMORY.search(str(error)):
                    raise FormatUnread(
                        f"{self._where} needs more than {_MAX_STREAM_MEMORY} bytes of memory to decompress"
                    ) from None
                raise FormatError(f"{self._where} is damaged") from None
            if ended and not content and not stream.eof:
                raise FormatError(f"the file ends within {self._where}")
            self.length += len(content)
            if self.length > self._limit:
                raise FormatUnread(f"{self._where} exceeds {self._limit} decompressed bytes")
            yield content
        self.position -= len(stream.unused_data)

    def _open(self) -> StreamDecompressor:
        head = self._read_at(self.position, max(map(len, _INITRD_STREAMS)))
        for magic, open_stream in _INITRD_STREAMS.items():
            if head.startswith(magic):
                return open_stream()
        raise FormatError(f"{self._where} has no supported compression: it begins with {head.hex()}")
