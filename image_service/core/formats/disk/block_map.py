"""Maps of formats with tables of blocks: runs of the disk's bytes, and their places."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import MAX_DISK_BYTES, SECTOR_BYTES
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt

MAX_BLOCKS = 1 << 27
"""Blocks of a file that is checked: 8 TiB of qcow2 with its default clusters of 64 KiB."""

CACHE_BYTES = 4 * 1024 * 1024
"""For the tables of one image, and again for its decompressed blocks."""

_EXCLUSIVE, _SHARED = b"\1", b"\2"


@attrs.frozen
class DiskRun:
    """Consecutive bytes of a disk.

    Args:
        offset: of the first one on the disk.
        length: their number.
        source: their offset in the file; or a function that returns the bytes; None: they are zeros.
    """

    offset: int
    length: int
    source: int | Callable[[], bytes] | None


class UsedBlocks:
    """The blocks of a file that some structure has, to find two that overlap.

    Args:
        file_size: bytes.
        block_bytes: length of a block, at a multiple of which each starts.
    """

    def __init__(self, file_size: int, block_bytes: int) -> None:
        count = -(-file_size // block_bytes)
        if count > MAX_BLOCKS:
            raise FormatError(f"the file has {count} blocks of {block_bytes} bytes, more than {MAX_BLOCKS}")
        self._file_size = file_size
        self._block_bytes = block_bytes
        self._use = bytearray(count)

    def take(self, name: str, offset: int, length: int) -> None:
        """Mark blocks as used by ``name`` alone; FormatError if another structure has one of them."""
        first, last = self._blocks(name, offset, length)
        if self._use.count(b"\0", first, last) != last - first:
            raise self._overlap(name, offset, length)
        self._use[first:last] = _EXCLUSIVE * (last - first)

    def take_block(self, number: int) -> bool:
        """Mark a block as used by one structure alone; False if it cannot be: `take` raises the error."""
        if number >= len(self._use) or self._use[number]:
            return False
        self._use[number] = 1
        return True

    def share_blocks(self, first: int, last: int) -> bool:
        """Mark blocks as used by any that share them; False if they cannot be: `share` raises the error."""
        use = self._use
        if last >= len(use) or 1 in use[first : last + 1]:
            return False
        for number in range(first, last + 1):
            use[number] = 2
        return True

    def share(self, name: str, offset: int, length: int) -> None:
        """Mark blocks as used by any that share them; FormatError if one was taken by `take`."""
        first, last = self._blocks(name, offset, length)
        if _EXCLUSIVE in self._use[first:last]:
            raise self._overlap(name, offset, length)
        self._use[first:last] = _SHARED * (last - first)

    def _blocks(self, name: str, offset: int, length: int) -> tuple[int, int]:
        first, last = offset // self._block_bytes, -(-(offset + length) // self._block_bytes)
        if last > len(self._use):
            raise FormatError(
                f"{name} is outside the file of {self._file_size} bytes: {length} bytes at offset {offset}"
            )
        return first, last

    def _overlap(self, name: str, offset: int, length: int) -> FormatError:
        return FormatError(f"{name} overlaps another structure: {length} bytes at offset {offset}")


class BlockStarts:
    """The starts of the blocks of a file that some structure has: all of one length, at any sector.

    Args:
        file_size: bytes.
        block_bytes: length of a block, a multiple of a sector.
    """

    def __init__(self, file_size: int, block_bytes: int) -> None:
        count = file_size // block_bytes + 2
        if count > MAX_BLOCKS // 4:  # each has four bytes
            raise FormatError(
                f"the file has {count} blocks of {block_bytes} bytes, more than {MAX_BLOCKS // 4}"
            )
        self._block_bytes = block_bytes
        # For each stretch of a block's length: 1 + the sector in it where a block starts.
        self._sectors = array("I", [0]) * count

    def take(self, name: str, offset: int) -> None:
        """Mark the block at ``offset``, which is inside the file; FormatError if it overlaps another."""
        stretch, inside = divmod(offset, self._block_bytes)
        sector = inside // SECTOR_BYTES + 1
        before, here, behind = (
            self._sectors[stretch - 1 : stretch + 2] if stretch else (0, *self._sectors[:2])
        )
        if here or before > sector or 0 < behind < sector:
            raise FormatError(f"{name} overlaps another: {self._block_bytes} bytes at offset {offset}")
        self._sectors[stretch] = sector


Walk: TypeAlias = Callable[[int, int], Iterator[DiskRun]]
"""(offset, end) to the runs of these bytes of the disk, without a gap."""


def run_reader(read_at: ReadAt, virtual_size: int, walk: Walk) -> ReadAt:
    """Return a reader of the disk whose runs ``walk`` finds in the file that ``read_at`` reads.

    Besides the result it holds the tables and blocks that its format caches, and the parts that it joins.
    """

    def read(offset: int, length: int) -> bytes:
        parts = []
        for run in _join(walk(offset, min(offset + length, virtual_size))):
            if run.source is None:
                parts.append(bytes(run.length))
            elif isinstance(run.source, int):
                parts.append(read_exactly(read_at, run.source, run.length))
            else:
                parts.append(run.source())
        return b"".join(parts)

    return read


def find_extents(runs: Iterator[DiskRun]) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the runs that are not zeros; neither touches the next."""
    return join_extents((run.offset, run.length) for run in runs if run.source is not None)


def join_extents(extents: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ascending extents, those that touch as one."""
    start = end = 0
    for offset, length in extents:
        if offset != end:
            if start != end:
                yield start, end - start
            start = offset
        end = offset + length
    if start != end:
        yield start, end - start


def _join(runs: Iterator[DiskRun]) -> Iterator[DiskRun]:
    """Yield the runs; those that follow each other on the disk and in the file, or have zeros, as one."""
    held = None
    for run in runs:
        if held is None:
            held = run
        elif (held.source is None and run.source is None) or (
            isinstance(held.source, int) and run.source == held.source + held.length
        ):
            held = DiskRun(held.offset, held.length + run.length, held.source)
        else:
            yield held
            held = run
    if held is not None:
        yield held


def check_virtual_size(size: int) -> None:
    """Raise FormatError if a disk claims more than `MAX_DISK_BYTES`."""
    if size > MAX_DISK_BYTES:
        raise FormatError(f"the disk claims {size} bytes; {MAX_DISK_BYTES} are supported")


def decode_table(data: bytes, code: str, order: str) -> array[int]:
    """Return the numbers of a table.

    Args:
        code: Q for numbers of 8 bytes, I for 4, H for 2.
        order: big or little.
    """
    table = array(code, data)
    if order != sys.byteorder:
        table.byteswap()
    return table
