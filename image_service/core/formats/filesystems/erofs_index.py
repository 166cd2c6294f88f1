"""The index of a compressed file in erofs: where its extents are stored.

A file is divided into clusters of a block each, and into extents, at most one of which starts in a cluster.
Each extent is compressed into whole blocks. The index has an entry per cluster: where an extent starts.

    offset  size  header, at the next multiple of 8 after the inode and its extended attributes
    0       4     offset in the packed node of the file's last extent
    4       2     flags: 1 short entries, 2 and 4 extents of several blocks, 8 the last extent follows the
                  index, 16 extents that are not compressed are rotated, 32 the last is in the packed node
    6       1     compression: 0 LZ4, 1 LZMA, 2 deflate, 3 zstd; of a second one << 4
    7       1     cluster size as a power of two, less the block size's; 0x80: the whole file is in the
                  packed node, at the offset in the header's other 63 bits

    entry   type    0 a plain extent starts, 1 a compressed one, 3 one of the second compression;
                    2 none starts
            value   the offset in the cluster at which it starts. Of type 2: 0x800 and the number of blocks
                    of the extent that started in the cluster before, if extents may have several;
                    else a distance

    layout 1, 8 bytes after the header, for each cluster
    0       2     type, 0x8000 if the extent is longer than its part of the file
    2       2     value
    4       4     first block; of type 2: value (2), distance (2)

    layout 3, after the header: packs, in which each entry has bits for the value (12, or as many as an
    offset in a cluster needs) and two for the type, the first entry lowest; a block (4) ends the pack. Packs
    have 2 entries in 8 bytes; between multiples of 32 bytes, if entries are short, 16 in 32.

The blocks of a pack's extents are consecutive. If extents may have several blocks, the pack's block is the
first of the extent whose number of blocks stands first in the pack; else the one before its first extent.
"""

from __future__ import annotations

import struct
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

PLAIN = 0
"""The type of an uncompressed extent."""

_CONTINUES, _SECOND = 2, 3
_SHORT, _SEVERAL_BLOCKS, _SEVERAL_BLOCKS_OF_SECOND, _ROTATED, _END_PACKED = 1, 2, 4, 16, 32
_FLAGS = _SHORT | _SEVERAL_BLOCKS | _SEVERAL_BLOCKS_OF_SECOND | _ROTATED | _END_PACKED
_WHOLLY_PACKED = 0x80
_HEADER = struct.Struct("<IHBB")
_ALIGNMENT = _PADDING = 8
_WHOLE_ENTRY = struct.Struct("<HHI")
_COUNT, _MAX_COUNT = 0x800, 0x7FF
_LONGER = 0x8000
_VALUE_BITS, _TYPES = 12, 3
_MAX_BITS = {True: 12, False: 14}  # of a value, by whether entries are short
_MAX_EXTENT = 16 * 1024 * 1024  # bytes; the most that mkfs.erofs compresses at a time


@attrs.frozen
class ErofsExtent:
    """A run of a file's bytes, stored in one piece."""

    start: int  # offset in the file
    length: int
    type: int  # `PLAIN`, or compressed
    block: int  # the first of its blocks
    blocks: int  # number of them; 0: unknown
    packed: int | None = None  # offset in the packed node; None: it is stored in the blocks


@attrs.frozen
class _Entry:
    """The entry of a cluster; where no extent starts, only the type and ``blocks`` have a meaning."""

    type: int
    offset: int = 0
    block: int = 0
    blocks: int = 1


@attrs.frozen
class _Packs:
    """A part of the index with packs of one size."""

    cluster: int  # the first
    position: int
    entries: int  # of a pack
    length: int  # of a pack, in bytes


@attrs.frozen(eq=False)
class ErofsIndex:
    """The index of a compressed file."""

    compression: int  # of the extents that are not `PLAIN`
    # A `PLAIN` extent starts in its block at its offset in the cluster, and wraps around in the block.
    is_rotated: bool
    _read_at: ReadAt
    _size: int
    _block_bits: int
    _parts: tuple[_Packs, ...]  # empty: the whole file is in the packed node
    _is_compact: bool
    _has_counts: bool
    _packed: int | None  # offset of the last extent, or of all, in the packed node

    def find_extents(self, start: int, stop: int) -> Iterator[ErofsExtent]:
        """Yield the extents of the bytes from ``start`` to ``stop``, which are in the file."""
        if not self._parts:
            yield ErofsExtent(0, self._size, PLAIN, 0, 0, self._packed)
            return
        end = ErofsExtent(self._size, 0, PLAIN, 0, 0)
        for extent, following in pairwise(chain(self._find_starts(start), [end])):
            length = following.start - extent.start
            if length > _MAX_EXTENT:
                raise FormatError(f"the erofs is damaged: it has an extent of {length} bytes")
            if following.start > start:
                packed = self._packed if following is end else None
                if packed is not None and not self._is_compact:
                    packed |= extent.block << 32  # without packs the block is the high half of the offset
                yield attrs.evolve(extent, length=length, packed=packed)
            if following.start >= stop:
                return

    def _find_starts(self, start: int) -> Iterator[ErofsExtent]:
        """Yield extents without lengths, from one that starts at or before ``start`` on."""
        begin = start
        for (cluster, entry), (_, following) in pairwise(chain(self._entries(start), [(0, _Entry(PLAIN))])):
            position = cluster << self._block_bits
            if position - begin > _MAX_EXTENT:
                raise FormatError(f"the erofs is damaged: no extent starts within {_MAX_EXTENT} bytes")
            if entry.type == _CONTINUES:
                continue
            begin = position + entry.offset
            if begin >= self._size:
                return  # in the last cluster mkfs.erofs starts another extent where the file ends
            blocks = following.blocks if following.type == _CONTINUES else 1
            yield ErofsExtent(begin, 0, entry.type, entry.block, blocks)

    def _entries(self, start: int) -> Iterator[tuple[int, _Entry]]:
        """Yield clusters and entries, from a pack in which an extent starts at or before ``start`` on."""
        first, entries = self._read_pack(start >> self._block_bits)
        while not any(
            entry.type != _CONTINUES and (cluster << self._block_bits) + entry.offset <= start
            for cluster, entry in enumerate(entries, first)
        ):
            if not first or start - (first << self._block_bits) > _MAX_EXTENT:
                raise FormatError(f"the erofs is damaged: no extent has offset {start} of a file")
            first, entries = self._read_pack(first - 1)
        while entries:
            yield from enumerate(entries, first)
            first, entries = self._read_pack(first + len(entries))

    def _read_pack(self, cluster: int) -> tuple[int, list[_Entry]]:
        """Return the first cluster and the entries of a cluster's pack; no entries after the end."""
        clusters = -(-self._size >> self._block_bits)
        if cluster >= clusters:
            return cluster, []
        part = next(part for part in reversed(self._parts) if part.cluster <= cluster)
        number = (cluster - part.cluster) // part.entries
        first = part.cluster + number * part.entries
        pack = self._read_at(part.position + number * part.length, part.length)
        if self._is_compact:
            return first, self._parse_pack(pack, part.entries)[: clusters - first]
        kind, value, block = _WHOLE_ENTRY.unpack(pack)
        if kind & _LONGER:
            raise FormatError("the erofs shares extents (dedupe), which is not supported")
        if kind & _TYPES == _CONTINUES:
            return first, [self._continue_entry(block & 0xFFFF)]
        return first, [self._start_entry(kind & _TYPES, value, block)]

    def _parse_pack(self, pack: bytes, number: int) -> list[_Entry]:
        value_bits = max(_VALUE_BITS, self._block_bits)
        entry_bits = (len(pack) - 4) * 8 // number
        bits, block = int.from_bytes(pack[:-4], "little"), int.from_bytes(pack[-4:], "little")
        entries: list[_Entry] = []
        uncounted = 0 if self._has_counts else 1  # blocks of the extent before, if no entry has their number
        for shift in range(0, number * entry_bits, entry_bits):
            entry = bits >> shift
            kind, value = entry >> value_bits & _TYPES, entry & (1 << value_bits) - 1
            if kind == _CONTINUES:
                entries.append(self._continue_entry(value))
                if self._has_counts:
                    block, uncounted = block + entries[-1].blocks, 0
            else:
                block, uncounted = block + uncounted, 1
                entries.append(self._start_entry(kind, value, block))
        return entries

    def _continue_entry(self, value: int) -> _Entry:
        if not self._has_counts:
            return _Entry(_CONTINUES, blocks=1)
        return _Entry(_CONTINUES, blocks=value & _MAX_COUNT if value & _COUNT else 0)

    def _start_entry(self, kind: int, offset: int, block: int) -> _Entry:
        if kind == _SECOND or offset >> self._block_bits:
            raise FormatError(
                f"the erofs has an extent of type {kind} at offset {offset} of a cluster,"
                " which is not supported"
            )
        return _Entry(kind, offset, block)


def read_index(
    read_at: ReadAt, inode_end: int, size: int, block_bits: int, *, is_compact: bool
) -> ErofsIndex:
    """Read the header of a compressed file's index; entries are read on demand.

    Args:
        read_at: reads the file system, and raises FormatError outside it.
        inode_end: offset after the inode and its extended attributes.
        size: bytes of the file.
        block_bits: block size as a power of two.
        is_compact: the entries are in packs (layout 3).
    """
    position = -(-inode_end // _ALIGNMENT) * _ALIGNMENT
    header = read_at(position, _HEADER.size)
    packed, flags, compression, cluster_bits = _HEADER.unpack(header)
    parts: tuple[_Packs, ...] = ()
    if cluster_bits & _WHOLLY_PACKED:
        packed, flags = int.from_bytes(header, "little") - (_WHOLLY_PACKED << 56), _END_PACKED
    elif flags & ~_FLAGS or cluster_bits:
        raise FormatError(
            f"the erofs has a file with unsupported flags {flags:#x} or clusters {cluster_bits:#x}"
        )
    elif is_compact:
        parts = _compact_parts(
            position + _HEADER.size, -(-size >> block_bits), block_bits, is_short=bool(flags & _SHORT)
        )
    else:
        parts = (_Packs(0, position + _HEADER.size + _PADDING, 1, _WHOLE_ENTRY.size),)
    return ErofsIndex(
        compression=compression,
        is_rotated=bool(flags & _ROTATED),
        read_at=read_at,
        size=size,
        block_bits=block_bits,
        parts=parts,
        is_compact=is_compact,
        has_counts=bool(flags & _SEVERAL_BLOCKS),
        packed=packed if flags & _END_PACKED else None,
    )


def _compact_parts(position: int, clusters: int, block_bits: int, *, is_short: bool) -> tuple[_Packs, ...]:
    if block_bits > _MAX_BITS[is_short]:
        raise FormatError(f"the erofs is damaged: an index of packs with blocks of {1 << block_bits} bytes")
    aligned = -position % 32 // 4
    short = max(clusters - aligned, 0) // 16 * 16 if is_short else 0
    return (
        _Packs(0, position, entries=2, length=8),
        _Packs(aligned, position + 4 * aligned, entries=16, length=32),
        _Packs(aligned + short, position + 4 * aligned + 2 * short, entries=2, length=8),
    )
