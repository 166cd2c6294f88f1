"""The blocks of a file: extents (ext4), or a map of single blocks (ext2 and ext3).

extents       a node in the inode, others in blocks: 0xF30A (2), entries (2), entries for which there is
              room (2), levels below (2), generation (4); then 12 bytes for each entry
  leaf        first block of the file (4), number of blocks (2; above 32768: as many more, all zeros),
              upper half of the first stored block (2), lower half (4)
  index       first block of the file (4), lower half of the node's block (4), upper half (2), unused (2)
map           12 numbers of blocks (4 each), then those of a block with numbers, of a block with numbers
              of such blocks, and of one with numbers of these; 0: zeros
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NODE = struct.Struct("<HHHH4x")
_LEAF_ENTRY, _INDEX_ENTRY = struct.Struct("<IHHI"), struct.Struct("<IIH2x")
_ENTRY_BYTES = 12
_MAGIC = 0xF30A
_MAX_LEVELS = 5
_MAX_INITIALIZED = 32768
_ALL_BLOCKS = 1 << 32
_DIRECT = 12
_LEVELS = (1, 2, 3)


@attrs.frozen
class BlockRun:
    """Blocks of a file that are stored in one piece.

    Args:
        first: block of the file.
        stored: block of the file system.
        count: blocks.
    """

    first: int
    stored: int
    count: int


def find_extents(
    root: bytes, first: int, last: int, read_block: Callable[[int], bytes]
) -> Iterator[BlockRun]:
    """Yield where the blocks of a file from `first` to before `last` are stored, in order; the rest is zeros.

    Args:
        root: the node in the inode.
        first: block of the file.
        last: block of the file.
        read_block: reads and checks a block with a node.

    Raises:
        FormatError: a node is damaged. Nodes of a level share no block of the file, so that a walk ends.
    """

    def walk(node: bytes, levels: int, low: int, high: int) -> Iterator[BlockRun]:
        for start, following, entry in _parse_node(node, levels, low, high):
            if start >= last or following <= first:
                continue
            if levels:
                _, lower, upper = _INDEX_ENTRY.unpack(entry)
                yield from walk(read_block(upper << 32 | lower), levels - 1, start, following)
                continue
            _, count, upper, lower = _LEAF_ENTRY.unpack(entry)
            begin, end = max(start, first), min(start + count, last)
            if count <= _MAX_INITIALIZED and begin < end:
                if start + count > following:
                    raise FormatError(f"the file system is damaged: extents overlap at block {following}")
                yield BlockRun(begin, (upper << 32 | lower) + begin - start, end - begin)

    levels = int.from_bytes(root[6:8], "little")
    if levels > _MAX_LEVELS:
        raise FormatError(f"the file system is damaged: extents of {levels} levels")
    return walk(root, levels, 0, _ALL_BLOCKS)


def _parse_node(node: bytes, levels: int, low: int, high: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield for each entry its first block of the file, the first of the next entry, and the entry."""
    magic, count, room, depth = _NODE.unpack_from(node)
    end = _NODE.size + count * _ENTRY_BYTES
    is_root = low == 0 and high == _ALL_BLOCKS
    if magic != _MAGIC or depth != levels or count > room or end > len(node) or not (count or is_root):
        raise FormatError("the file system is damaged: a node of extents is not what it must be")
    entries = [node[at : at + _ENTRY_BYTES] for at in range(_NODE.size, end, _ENTRY_BYTES)]
    starts = [low - 1, *(int.from_bytes(entry[:4], "little") for entry in entries), high]
    if any(one >= other for one, other in pairwise(starts)):
        raise FormatError("the file system is damaged: extents are not in order")
    return zip(starts[1:-1], starts[2:], entries, strict=True)


def find_mapped_blocks(
    numbers: bytes, first: int, last: int, block_size: int, read_block: Callable[[int], bytes]
) -> Iterator[BlockRun]:
    """Yield where the blocks of a file from `first` to before `last` are stored, in order; the rest is zeros.

    Args:
        numbers: the 15 in the inode.
        first: block of the file.
        last: block of the file.
        block_size: bytes.
        read_block: reads a block with numbers.
    """
    block_map = _BlockMap(struct.unpack("<15I", numbers), block_size // 4, read_block)
    run: BlockRun | None = None
    for index in range(first, last):
        stored = block_map.find(index)
        if run and stored == run.stored + run.count:
            run = attrs.evolve(run, count=run.count + 1)
            continue
        if run:
            yield run
        run = BlockRun(index, stored, 1) if stored else None
    if run:
        yield run


@attrs.frozen
class _BlockMap:
    """The map in an inode, and by level the block with numbers that was read last."""

    direct: tuple[int, ...]
    per_block: int
    read_block: Callable[[int], bytes]
    tables: dict[int, tuple[int, bytes]] = attrs.field(factory=dict)

    def find(self, index: int) -> int:
        """Return where a block of the file is stored; 0: it is zeros."""
        if index < _DIRECT:
            return self.direct[index]
        index -= _DIRECT
        for levels in _LEVELS:
            if index < self.per_block**levels:
                return self._descend(self.direct[_DIRECT + levels - 1], levels, index)
            index -= self.per_block**levels
        raise FormatError("the file system is damaged: a file is larger than its map of blocks")

    def _descend(self, block: int, levels: int, index: int) -> int:
        for level in range(levels - 1, -1, -1):
            if not block:
                break
            if level not in self.tables or self.tables[level][0] != block:
                self.tables[level] = block, self.read_block(block)
            below: int = self.per_block**level
            position = 4 * (index // below % self.per_block)
            block = int.from_bytes(self.tables[level][1][position : position + 4], "little")
        return block
