from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.digest_list import (
    BLOCK_BYTES,
    max_list_bytes,
    parse_digest_list,
    render_digest_list,
)


def rendered(content: bytes) -> bytes:
    return "".join(render_digest_list(io.BytesIO(content).read, len(content))).encode()


@given(st.integers(0, 3), st.sampled_from([-1, 0, 1]))
def test_list_has_the_digest_of_each_mib(blocks: int, more: int) -> None:
    size = max(0, blocks * BLOCK_BYTES + more)
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    text = rendered(content)
    assert text.partition(b"\n")[0] == f"sha256 {size} 1048576".encode()
    found = parse_digest_list(text)
    assert found.size == size
    expected = [content[at : at + BLOCK_BYTES] for at in range(0, size, BLOCK_BYTES)]
    assert found.digests == b"".join(hashlib.sha256(block).digest() for block in expected)
    assert len(text) <= max_list_bytes(size)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "does not begin with the line: sha256 SIZE 1048576"),
        (b"sha256 1 4096\n" + b"0" * 64 + b"\n", "does not begin with"),
        (b"sha256 01 1048576\n" + b"0" * 64 + b"\n", "does not begin with"),
        (b"sha256 1 1048576\n", "must have 1 digests for 1 bytes"),
        (b"sha256 1 1048576\n" + b"0" * 64, "must have 1 digests"),
        (b"sha256 1 1048576\n" + (b"0" * 64 + b"\n") * 2, "must have 1 digests"),
        (b"sha256 1 1048576\n" + b"A" * 64 + b"\n", "64 hexadecimal digits in lower case"),
        (b"sha256 1 1048576\n" + b"0" * 63 + b"\n\n", "64 hexadecimal digits"),
    ],
)
def test_other_text_is_refused(text: bytes, expected: str) -> None:
    with pytest.raises(FormatError, match=expected):
        parse_digest_list(text)


def test_file_that_becomes_shorter_is_no_list() -> None:
    with pytest.raises(FormatError, match="ends at or before offset 3"):
        list(render_digest_list(io.BytesIO(b"abc").read, 4))
