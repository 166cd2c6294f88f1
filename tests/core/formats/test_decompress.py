from __future__ import annotations

import lzma
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.decompress import (
    Decompressor,
    decompress,
    decompress_lz4,
    decompress_xz,
    decompress_zlib,
    decompress_zstd,
    microlzma_decompressor,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Stream: TypeAlias = tuple[Decompressor, Callable[[bytes], bytes]]

DICTIONARY = 65536
BOMB = 40 * 1024 * 1024


def microlzma(content: bytes, literals: int = 3, literal_position: int = 0, position: int = 2) -> bytes:
    """Return MicroLZMA."""
    settings = {"lc": literals, "lp": literal_position, "pb": position, "dict_size": DICTIONARY}
    packed = lzma.compress(
        content, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1, "preset": 6, **settings}]
    )
    assert packed[0] == 0
    return bytes([~((position * 5 + literal_position) * 9 + literals) & 0xFF]) + packed[1:]


def lz4(sequences: list[tuple[bytes, int, int]], last: bytes) -> bytes:
    """Return an LZ4 block of sequences (literals, distance, length of the match) and the last literals."""
    matches = [
        lz4_head(literals, length - 4) + distance.to_bytes(2, "little") + more(length - 4)
        for literals, distance, length in sequences
    ]
    return b"".join(matches) + lz4_head(last, 0)


def lz4_head(literals: bytes, match: int) -> bytes:
    return bytes([min(len(literals), 15) << 4 | min(match, 15)]) + more(len(literals)) + literals


def more(length: int) -> bytes:
    return b"" if length < 15 else b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


@st.composite
def lz4_blocks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """LZ4 blocks with their content, computed byte by byte."""
    sequences, unpacked = [], bytearray()
    for literals, distance, length in draw(
        st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 65535), st.integers(4, 700)), max_size=8)
    ):
        unpacked += literals
        if unpacked:
            back = min(distance, len(unpacked))
            sequences.append((literals, back, length))
            for _ in range(length):
                unpacked.append(unpacked[-back])
    last = draw(st.binary(max_size=600))
    return lz4(sequences, last), bytes(unpacked + last)


STREAMS: list[Stream] = [
    (decompress_zlib, zlib.compress),
    (decompress_xz, lambda content: lzma.compress(content, check=lzma.CHECK_CRC32)),
    (decompress_zstd, zstd.compress),
]


@given(stream=st.sampled_from(STREAMS), content=st.binary(max_size=2000))
def test_streams_are_decompressed_whole(stream: Stream, content: bytes) -> None:
    method, pack = stream
    assert decompress(method, pack(content), len(content), "it") == content
    assert decompress(method, pack(content), len(content) + 100, "it") == content


@given(stream=st.sampled_from(STREAMS), content=st.binary(min_size=1, max_size=200), cut=st.integers(1, 10))
def test_stream_of_wrong_length_is_refused(stream: Stream, content: bytes, cut: int) -> None:
    method, pack = stream
    with pytest.raises(FormatError, match="it is damaged"):
        decompress(method, pack(content), len(content) - 1, "it")
    with pytest.raises(FormatError, match="it is damaged"):
        decompress(method, pack(content)[:-cut], len(content), "it")


@pytest.mark.parametrize("stream", STREAMS, ids=["zlib", "xz", "zstd"])
def test_decompression_bomb_is_refused(stream: Stream) -> None:
    method, pack = stream
    packed = pack(bytes(BOMB))
    with (
        memory_limit(BOMB // 4),
        pytest.raises(FormatError, match="it is damaged"),
    ):  # xz allocates 8 MiB itself
        decompress(method, packed, 8192, "it")


def test_bomb_without_end_is_decompressed_to_the_requested_length_only() -> None:
    for method, packed in (
        (decompress_lz4, lz4([(b"a", 1, BOMB)], b"")),
        (microlzma_decompressor(DICTIONARY), microlzma(b"a" * BOMB)),
    ):
        with memory_limit(BOMB // 4):
            assert decompress(method, packed, 5000, "it") == b"a" * 5000


@contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Fail if the peak of allocated memory exceeds so many bytes."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < limit


def test_decoder_memory_is_limited() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 * 1024 * 1024}]
    greedy_xz = lzma.compress(b"x", check=lzma.CHECK_CRC32, filters=filters)
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    compressor = zstd.ZstdCompressor(options=options)
    greedy_zstd = compressor.compress(b"x") + compressor.flush()
    assert lzma.decompress(greedy_xz) == b"x"
    for method, packed in ((decompress_xz, greedy_xz), (decompress_zstd, greedy_zstd)):
        with pytest.raises(FormatError, match="it is damaged"):
            decompress(method, packed, 8192, "it")


@given(block=lz4_blocks(), length=st.integers(0, 3000))
def test_lz4_is_decompressed_to_the_requested_length(block: tuple[bytes, bytes], length: int) -> None:
    packed, unpacked = block
    assert decompress(decompress_lz4, packed, length, "it") == unpacked[:length]
    assert decompress(decompress_lz4, packed, len(unpacked), "it") == unpacked


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xf0",
        b"\xf0\xff",
        b"\x10a\x01",
        b"\x10a\x00\x00\x00",
        b"\x10a\x02\x00\x00",
        b"\x1fa\x01\x00\xff",
    ],
)
def test_damaged_lz4_is_refused(packed: bytes) -> None:
    with pytest.raises(FormatError, match=f"its {len(packed)} bytes cannot be decompressed"):
        decompress(decompress_lz4, packed, 5000, "it")


@given(
    content=st.binary(min_size=1, max_size=3000),
    length=st.integers(0, 3000),
    bits=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)).filter(
        lambda bits: bits[0] + bits[1] <= 4
    ),
)
def test_microlzma_is_decompressed_to_the_requested_length(
    content: bytes, length: int, bits: tuple[int, int, int]
) -> None:
    packed = microlzma(content, *bits)
    assert decompress(microlzma_decompressor(DICTIONARY), packed, len(content), "it") == content
    assert decompress(microlzma_decompressor(DICTIONARY), packed, length, "it") == content[:length]


@pytest.mark.parametrize("packed", [b"", b"\x00abcdef", bytes([~(4 * 9 + 8) & 0xFF]) + b"abcdef"])
def test_damaged_microlzma_is_refused(packed: bytes) -> None:
    with pytest.raises(FormatError, match="it is damaged"):
        decompress(microlzma_decompressor(DICTIONARY), packed, 5000, "it")


@given(packed=st.binary(max_size=300), length=st.integers(1, 10_000))
def test_random_bytes_raise_format_errors_only(packed: bytes, length: int) -> None:
    for method in (
        decompress_zlib,
        decompress_xz,
        decompress_zstd,
        decompress_lz4,
        microlzma_decompressor(DICTIONARY),
    ):
        try:
            unpacked = decompress(method, packed, length, "it")
        except FormatError:
            continue
        assert len(unpacked) <= length
