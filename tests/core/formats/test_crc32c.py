from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.crc32c import crc32c, update_crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720 appendix B.4, as the next two
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_published_checksums(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@given(st.binary(), st.binary())
def test_checksum_in_two_pieces_is_that_of_the_whole(one: bytes, other: bytes) -> None:
    assert update_crc32c(update_crc32c(0xFFFFFFFF, one), other) ^ 0xFFFFFFFF == crc32c(one + other)
