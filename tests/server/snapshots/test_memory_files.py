from __future__ import annotations

import gc
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from image_service.core.extents import Extent, ExtentMap, FileExtent, Literal, MemoryExtent, Zeros
from image_service.server.snapshots.memory_files import MIN_FILE_BYTES, move_to_memory_files
from tests.core.images.building import base_file, read

if TYPE_CHECKING:
    import pytest

LONG = bytes(range(256)) * (MIN_FILE_BYTES // 256) + b"end"


def is_open(descriptor: int, inode: int) -> bool:
    with suppress(OSError):
        return os.fstat(descriptor).st_ino == inode
    return False


@given(st.data())
def test_the_bytes_and_their_count_stay(data: st.DataObject) -> None:
    with base_file(LONG) as file:
        kinds: list[Extent] = [Literal(LONG), Literal(LONG[:-4]), Zeros(5_000_000), FileExtent(file, 3, 4)]
        image = ExtentMap(tuple(data.draw(st.lists(st.sampled_from(kinds), max_size=5))))
        moved = move_to_memory_files(image)
        assert moved.bytes_in_memory == image.bytes_in_memory
        assert read(moved.extents) == read(image.extents)
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, image.size)] * 2)))
        assert read(moved.slice(start, stop)) == read(image.slice(start, stop))


def test_only_long_literals_are_in_files() -> None:
    with base_file(LONG) as file:
        image = ExtentMap((Literal(LONG), Literal(LONG[:-4]), Zeros(1 << 30), FileExtent(file, 0, 8)))
        first, *others = move_to_memory_files(image).extents
    assert isinstance(first, MemoryExtent)
    assert isinstance(first.slice(3, 9), MemoryExtent)
    assert others == [*image.extents[1:]]


def test_file_is_closed_with_the_last_reference() -> None:
    (first,) = move_to_memory_files(ExtentMap((Literal(LONG),))).extents
    assert isinstance(first, FileExtent)
    descriptor = first.file.descriptor
    inode = os.fstat(descriptor).st_ino
    part = first.slice(5, 10)
    del first
    gc.collect()
    assert read([part]) == LONG[5:10]
    del part
    gc.collect()
    assert not is_open(descriptor, inode)


def test_literal_stays_if_there_is_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    image = ExtentMap((Literal(LONG),))
    assert move_to_memory_files(image) == image


def test_file_is_closed_if_the_memory_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def refuse(descriptor: int, *_: object) -> int:
        made.append((descriptor, os.fstat(descriptor).st_ino))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    image = ExtentMap((Literal(LONG),))
    assert move_to_memory_files(image) == image
    gc.collect()
    assert not is_open(*made[0])
