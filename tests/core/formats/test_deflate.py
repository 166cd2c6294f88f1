from __future__ import annotations

import base64
import random
import zlib
from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.deflate import code_lengths, deflate_by_huffman, deflate_within, store_blocks
from tests.core.images.later_layout import deflate_by_zlib_huffman

TEXT = base64.b64encode(random.Random(7).randbytes(150_000))  # noqa: S311 - text, the same each time
SIZES = [4096 << number for number in range(7)]
FIBONACCI = [1, 1]
while len(FIBONACCI) < 24:
    FIBONACCI.append(FIBONACCI[-1] + FIBONACCI[-2])


def inflate(stream: bytes) -> bytes:
    """Return the content of a stream that ends with its last byte."""
    decoder = zlib.decompressobj(wbits=-15)
    data = decoder.decompress(stream)
    assert decoder.eof
    assert not decoder.unused_data
    return data


def stored_end(data: bytes) -> bytes:
    """Return a stream of stored blocks but for its first byte."""
    return b"".join(store_blocks(data))[1:] if data else b""


@given(st.binary(max_size=3000) | st.text("01", max_size=3000).map(str.encode))
def test_zlib_inflates_any_data(data: bytes) -> None:
    assert inflate(deflate_by_huffman(data)) == data


@pytest.mark.parametrize("data", [b"", b"\0", b"x", b"xyz", b"x" * 100_000, bytes(range(256)), TEXT])
def test_zlib_inflates(data: bytes) -> None:
    assert inflate(deflate_by_huffman(data)) == data


@given(st.binary(max_size=3000), st.integers(0, 20), st.integers(0, 300_000))
def test_stream_fits_if_one_with_codes_alone_does(data: bytes, times: int, capacity: int) -> None:
    data = TEXT[: len(data) * 40] + data * times
    stream, coded = deflate_within(data, capacity), deflate_by_huffman(data)
    assert inflate(stream) == data
    assert len(stream) <= capacity or stream == coded
    assert len(stream) <= max(capacity, len(coded))


@pytest.mark.parametrize("excess", [-3000, -1, 0, 1, 100, 3000, 40_000, 66_000])
@pytest.mark.parametrize("length", [65_535, 65_536, 100_000, 200_000])
def test_no_more_is_coded_than_necessary(length: int, excess: int) -> None:
    data = TEXT[:length]
    stream = deflate_within(data, length - excess)
    assert inflate(stream) == data
    coded = min(length, next(size for size in SIZES if stream.endswith(stored_end(data[size:]))))
    assert coded == 4096 or coded < 12 * excess
    assert len(stream) <= length - excess or coded == length


def test_stream_is_golden() -> None:
    digest = sha256(deflate_by_huffman(TEXT)).hexdigest()
    assert digest == "728f36f9a45dc68c7427e866766cbcff4b2565417cb8bff5dd65a09de7ec8540"


def test_stream_is_about_as_long_as_that_of_zlib() -> None:
    assert len(deflate_by_huffman(TEXT)) < len(deflate_by_zlib_huffman(TEXT)) * 1.01


def test_code_of_more_than_15_bits_is_made_shorter() -> None:
    data = b"".join(bytes([number]) * count for number, count in enumerate(FIBONACCI))
    assert max(code_lengths(Counter(data)).values()) < 16
    assert inflate(deflate_by_huffman(data)) == data


@given(st.dictionaries(st.integers(0, 256), st.integers(0, 50), min_size=2))
def test_code_is_complete_and_as_short_as_any_prefix_code(frequencies: dict[int, int]) -> None:
    lengths = code_lengths(frequencies)
    assert sum(2**-length for length in lengths.values()) == 1
    assert sum(frequencies[symbol] * lengths[symbol] for symbol in lengths) == cost(frequencies)


def cost(frequencies: dict[int, int]) -> int:
    """Return the bits of the shortest code: what all merges of the two rarest add up to."""
    left, bits = sorted(frequencies.values()), 0
    while len(left) > 1:
        merged = left[0] + left[1]
        left, bits = sorted([*left[2:], merged]), bits + merged
    return bits
