from __future__ import annotations

import base64
import random
import zlib
from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.deflate import code_lengths, deflate_by_huffman
from tests.core.images.later_layout import deflate_by_zlib_huffman

TEXT = base64.b64encode(random.Random(7).randbytes(150_000))  # noqa: S311 - text, the same each time
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


@given(st.binary(max_size=3000) | st.text("01", max_size=3000).map(str.encode))
def test_zlib_inflates_any_data(data: bytes) -> None:
    assert inflate(deflate_by_huffman(data)) == data


@pytest.mark.parametrize("data", [b"", b"\0", b"x", b"xyz", b"x" * 100_000, bytes(range(256)), TEXT])
def test_zlib_inflates(data: bytes) -> None:
    assert inflate(deflate_by_huffman(data)) == data


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
