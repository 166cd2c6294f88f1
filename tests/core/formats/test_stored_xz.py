from __future__ import annotations

import lzma
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.stored_xz import CHUNK_BYTES, store_in_xz
from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [0, 1, 2, 3, 4, 127, 128, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5]


def stored(content: bytes) -> bytes:
    parts = store_in_xz(len(content))
    return b"".join(
        part if isinstance(part, bytes) else content[part.offset : part.offset + part.length]
        for part in parts
    )


@given(st.sampled_from(LENGTHS) | st.integers(0, 4 * CHUNK_BYTES), st.binary(min_size=1, max_size=9))
def test_content_is_unpacked_unchanged(length: int, pattern: bytes) -> None:
    content = (pattern * (length // len(pattern) + 1))[:length]
    assert lzma.decompress(stored(content), lzma.FORMAT_XZ) == content


@pytest.mark.parametrize("length", LENGTHS)
def test_xz_finds_no_fault(length: int, tmp_path: Path) -> None:
    needs_client("xz")
    path = tmp_path / "content.xz"
    path.write_bytes(stored(b"x" * length))
    result = subprocess.run(["xz", "--test", str(path)], capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    listed = subprocess.run(["xz", "--robot", "--list", str(path)], capture_output=True, check=True)
    file = next(line for line in listed.stdout.decode().splitlines() if line.startswith("file"))
    assert file.split("\t")[4] == str(length)
