"""The maps of used blocks and the joining of runs, against naive oracles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.block_map import (
    BlockStarts,
    DiskRun,
    UsedBlocks,
    find_extents,
    run_reader,
)

SECTOR = 512
BLOCKS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 3), st.booleans()), max_size=8)


@given(BLOCKS)
def test_blocks_that_overlap_are_refused(places: list[tuple[int, int, bool]]) -> None:
    """Only shared blocks may be shared, and only with each other."""
    used = UsedBlocks(18 * 100 - 1, 100)
    owner: dict[int, bool] = {}
    for first, count, shared in places:
        blocks = range(first, first + count)
        free = all(owner.get(block, shared) is shared if shared else block not in owner for block in blocks)
        mark = used.share if shared else used.take
        if free:
            mark("it", first * 100, count * 100 - 1)
            owner.update(dict.fromkeys(blocks, shared))
        else:
            with pytest.raises(FormatError, match="it overlaps another structure"):
                mark("it", first * 100, count * 100)


def test_block_outside_the_file_is_refused() -> None:
    used = UsedBlocks(250, 100)
    used.take("it", 200, 100)  # the file ends in it
    for offset, length in ((300, 1), (2**63, 1), (0, 2**63)):
        with pytest.raises(FormatError, match=f"it is outside the file of 250 bytes: {length} bytes"):
            used.take("it", offset, length)


@given(st.integers(1, 5), st.lists(st.integers(0, 40), max_size=10))
def test_blocks_at_any_sector_that_overlap_are_refused(sectors: int, places: list[int]) -> None:
    starts = BlockStarts((40 + sectors) * SECTOR, sectors * SECTOR)
    taken: set[int] = set()
    for place in places:
        block = set(range(place, place + sectors))
        if taken & block:
            with pytest.raises(FormatError, match="it overlaps another"):
                starts.take("it", place * SECTOR)
        else:
            starts.take("it", place * SECTOR)
            taken |= block


RUNS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["zeros", "next", "far", "packed"])), max_size=8)


@given(RUNS, st.integers(0, 80))
def test_runs_are_read_and_listed_as_their_bytes(shapes: list[tuple[int, str]], more: int) -> None:
    """Runs that follow each other in the file are read at once."""
    file = bytes(range(1, 250))
    runs: list[DiskRun] = []
    disk = b""
    position = 0
    for count, shape in shapes:
        position += 11 if shape == "far" else 0
        content = bytes(count) if shape == "zeros" else file[position : position + count]
        source = {"zeros": None, "packed": lambda content=content: content}.get(shape, position)
        runs.append(DiskRun(len(disk), count, source))
        disk += content
        position += count if source == position else 0
    reads: list[int] = []

    def read_at(start: int, count: int) -> bytes:
        reads.append(start)
        return file[start : start + count]

    def walk(first: int, end: int) -> list[DiskRun]:
        assert (first, end) == (0, len(disk)), "the end of the disk is the last"
        return runs

    read = run_reader(read_at, len(disk), lambda first, end: iter(walk(first, end)))
    assert read(0, len(disk) + more) == disk
    assert len(reads) == len(set(reads))
    covered = bytearray(disk)
    previous = -1
    for start, count in find_extents(iter(runs)):
        assert start > previous, "no two extents touch"
        previous = start + count
        covered[start:previous] = bytes(count)
    assert not any(covered)
