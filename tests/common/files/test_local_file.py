"""The contract of a base file, on one that is fully resident and on one whose bytes are partly absent."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from image_service.common.files.local_file import BLOCK_BYTES, LocalFile, ShortReadError
from image_service.core.errors import BaseImageError
from tests.common.files.partly_absent import PartlyAbsent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.base_file import BaseFile

CONTENT = hashlib.shake_256(b"base file").digest(2 * BLOCK_BYTES + 100_001)
SIZE = len(CONTENT)


@pytest.fixture(params=["resident", "partly absent"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseFile]:
    path = tmp_path / "base.iso"
    if request.param == "resident":
        path.write_bytes(CONTENT)
        opened = LocalFile.open(path)
    else:
        opened = PartlyAbsent(path, CONTENT).file
        assert path.read_bytes() == bytes(SIZE), "reading the file itself returns zeros"
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 0),
        (0, 1),
        (0, SIZE),
        (65_535, 2),
        (65_536, 65_536),
        (SIZE - 1, 1),
        (BLOCK_BYTES, 300_000),
        (9, SIZE),
    ],
)
def test_read_at_returns_the_bytes(file: BaseFile, offset: int, length: int) -> None:
    assert file.read_at(offset, length) == CONTENT[offset : offset + length]


@pytest.mark.parametrize("offset", [SIZE, SIZE + 1, 2**40])
def test_read_at_behind_the_end_returns_nothing(file: BaseFile, offset: int) -> None:
    assert file.read_at(offset, 10) == b""


def test_sha256_is_of_all_bytes(file: BaseFile) -> None:
    assert file.sha256() == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (100, BLOCK_BYTES), (5, 2 * BLOCK_BYTES), (7, 0)])
def test_sha256_of_a_part(file: BaseFile, offset: int, length: int) -> None:
    assert file.sha256(offset, length) == hashlib.sha256(CONTENT[offset : offset + length]).hexdigest()


def test_sha256_reports_each_block_and_stops_on_an_exception(file: BaseFile) -> None:
    blocks: list[int] = []
    file.sha256(on_block=blocks.append)
    assert blocks == [BLOCK_BYTES, BLOCK_BYTES, 100_001]

    def stop(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        file.sha256(on_block=stop)


def test_sha256_of_a_truncated_file_is_an_error(file: BaseFile) -> None:
    os.truncate(file.path, 1000)
    with pytest.raises(ShortReadError, match="ends at or before offset"):
        file.sha256(0, SIZE + 1)


def test_held_bytes_can_be_read_by_descriptor(file: BaseFile) -> None:
    with file.hold():
        assert os.pread(file.descriptor, SIZE, 0) == CONTENT
    with file.hold(70_000, 1000):
        assert os.pread(file.descriptor, 1000, 70_000) == CONTENT[70_000:71_000]


def test_duplicate_outlives_the_original(file: BaseFile) -> None:
    copy = file.duplicate()
    original = os.dup(file.descriptor)
    file.close()
    assert copy.read_at(5, 5) == CONTENT[5:10]
    os.dup2(original, file.descriptor)  # for the fixture, which closes it
    os.close(original)
    copy.close()


def test_absent_bytes_are_fetched_once_per_read_and_no_more_than_needed(tmp_path: Path) -> None:
    absent = PartlyAbsent(tmp_path / "base.iso", CONTENT, block_bytes=1000)
    absent.file.read_at(1999, 2)
    absent.file.close()
    assert absent.fetched == [1, 2]


def test_open_refuses_other_than_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(BaseImageError, match="is not a regular file"):
            LocalFile.open(path)
