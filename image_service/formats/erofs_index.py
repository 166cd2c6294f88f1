"""The index of a compressed file in erofs: where its pieces lie.

A file is cut into clusters of a block each, and into extents, of which at most one begins in a cluster. Each
extent is compressed into whole blocks. The index tells, cluster by cluster, where extents begin.

    offset  size  header, at the next multiple of 8 behind the inode and its extended attributes
    0       4     offset in the packed node of the file's last extent
    4       2     flags: 1 short entries, 2 and 4 extents of several blocks, 8 the last extent is behind the
                  index, 16 extents that are not compressed are rotated, 32 the last is in the packed node
    6       1     compression: 0 LZ4, 1 LZMA, 2 deflate, 3 zstd; of a second one << 4
    7       1     cluster size as a power of two, less the block size's; 0x80: the whole file is in the
                  packed node, at the offset that the header's other 63 bits are

    entry   type    0 an extent begins that is not compressed, 1 one that is, 3 one by the second
                    compression; 2 none begins
            value   the offset in the cluster at which it begins. Of type 2: 0x800 and the number of blocks
                    of the extent that began in the cluster before, if there may be several; else a distance

    layout 1, from 8 bytes behind the header, for each cluster
    0       2     type, 0x8000 if the extent is longer than what the file has of it
    2       2     value
    4       4     first block; of type 2: value (2), distance (2)

    layout 3, behind the header: packs, in which each entry has bits for the value (12, or as many as an
    offset in a cluster needs) and two for the type, the first entry lowest; a block (4) ends the pack. Packs
    have 2 entries in 8 bytes, or, between multiples of 32 bytes and where entries are short, 16 in 32.

The blocks of a pack's extents follow each other. If extents may have several, the pack's block is the first
of the extent whose number of blocks the pack tells first; if not, the one before its first extent.
"""

from __future__ import annotations

import struct
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.formats.reading import ReadAt

PLAIN = 0
"""The type of an extent that is not compressed."""

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
_MAX_EXTENT = 16 * 1024 * 1024  # bytes; mkfs.erofs looks at no more at a time


@attrs.frozen
class Extent:
    """A run of a file's bytes that is stored in one piece.

    Args:
        start: offset in the file.
        length: bytes.
        type: `PLAIN`, or compressed.
        block: the first one that it is stored in.
        blocks: number of them; 0: the index does not tell.
        packed: offset in the packed node, if it is stored there; None: in the blocks.
    """

    start: int
    length: int
    type: int
    block: int
    blocks: int
    packed: int | None = None


@attrs.frozen
class _Entry:
    """What the index says of a cluster; where no extent begins, only the type and ``blocks``."""

    type: int
    offset: int = 0
    block: int = 0
    blocks: int = 1


@attrs.frozen
class _Packs:
    """A part of the index, packed in one way."""

    cluster: int  # the first one
    position: int
    entries: int  # of a pack
    length: int  # of a pack, in bytes


@attrs.frozen(eq=False)
class Index:
    """The index of a compressed file.

    Args:
        compression: by which the extents are compressed that are not `PLAIN`.
        is_rotated: an extent that is `PLAIN` begins in its block where it begins in a cluster, and goes on at
            the block's start.
    """

    compression: int
    is_rotated: bool
    _read_at: ReadAt
    _size: int
    _block_bits: int
    _parts: tuple[_Packs, ...]  # none: all of the file is in the packed node
    _is_compact: bool
    _has_counts: bool
    _packed: int | None  # offset of the last extent, or of all, in the packed node

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Give the extents that hold the bytes from ``start`` to ``stop``, which lie in the file.

        Raises:
            FormatError: the index is damaged, or uses what is not read.
        """
        if not self._parts:
            yield Extent(0, self._size, PLAIN, 0, 0, self._packed)
            return
        end = Extent(self._size, 0, PLAIN, 0, 0)
        for extent, following in pairwise(chain(self._begins(start), [end])):
            length = following.start - extent.start
            if length > _MAX_EXTENT:
                raise FormatError(f"the erofs is damaged: it has an extent of {length} bytes")
            if following.start > start:
                packed = self._packed_end(extent) if following is end else None
                yield attrs.evolve(extent, length=length, packed=packed)
            if following.start >= stop:
                return

    def _packed_end(self, extent: Extent) -> int | None:
        """Where the last extent is in the packed node; without packs its block has the offset's high half."""
        if self._packed is None or self._is_compact:
            return self._packed
        return extent.block << 32 | self._packed

    def _begins(self, start: int) -> Iterator[Extent]:
        """Where extents begin, from one at or before ``start`` on; their lengths are left open."""
        began = start
        behind = _Entry(PLAIN)
        for (cluster, entry), (_, following) in pairwise(chain(self._entries(start), [(0, behind)])):
            position = cluster << self._block_bits
            if position - began > _MAX_EXTENT:
                raise FormatError(f"the erofs is damaged: no extent begins within {_MAX_EXTENT} bytes")
            if entry.type == _CONTINUES:
                continue
            began = position + entry.offset
            if began >= self._size:
                return  # in the last cluster mkfs.erofs lets another one begin where the file ends
            blocks = following.blocks if following.type == _CONTINUES else 1
            yield Extent(began, 0, entry.type, entry.block, blocks)

    def _entries(self, start: int) -> Iterator[tuple[int, _Entry]]:
        """The clusters and their entries, from a pack on in which an extent begins at or before ``start``."""
        first, entries = self._pack(start >> self._block_bits)
        while not self._begins_by(start, first, entries):
            if not first or start - (first << self._block_bits) > _MAX_EXTENT:
                raise FormatError(f"the erofs is damaged: no extent holds offset {start} of a file")
            first, entries = self._pack(first - 1)
        while entries:
            yield from enumerate(entries, first)
            first, entries = self._pack(first + len(entries))

    def _begins_by(self, start: int, first: int, entries: list[_Entry]) -> bool:
        return any(
            entry.type != _CONTINUES and (cluster << self._block_bits) + entry.offset <= start
            for cluster, entry in enumerate(entries, first)
        )

    def _pack(self, cluster: int) -> tuple[int, list[_Entry]]:
        """The pack that a cluster is in: its first cluster, and the entries; none behind the end."""
        clusters = -(-self._size >> self._block_bits)
        if cluster >= clusters:
            return cluster, []
        part = next(part for part in reversed(self._parts) if part.cluster <= cluster)
        number = (cluster - part.cluster) // part.entries
        first = part.cluster + number * part.entries
        pack = self._read_at(part.position + number * part.length, part.length)
        entries = self._parse_pack(pack, part.entries) if self._is_compact else [self._parse_entry(pack)]
        return first, entries[: clusters - first]

    def _parse_pack(self, pack: bytes, number: int) -> list[_Entry]:
        value_bits = max(_VALUE_BITS, self._block_bits)
        entry_bits = (len(pack) - 4) * 8 // number
        bits, block = int.from_bytes(pack[:-4], "little"), int.from_bytes(pack[-4:], "little")
        entries: list[_Entry] = []
        untold = 0 if self._has_counts else 1  # blocks of the extent before that no count has told
        for shift in range(0, number * entry_bits, entry_bits):
            entry = bits >> shift
            kind, value = entry >> value_bits & _TYPES, entry & (1 << value_bits) - 1
            if kind == _CONTINUES:
                entries.append(self._continued(value))
                if self._has_counts:
                    block, untold = block + entries[-1].blocks, 0
            else:
                block, untold = block + untold, 1
                entries.append(self._beginning(kind, value, block))
        return entries

    def _parse_entry(self, pack: bytes) -> _Entry:
        kind, value, block = _WHOLE_ENTRY.unpack(pack)
        if kind & _LONGER:
            raise FormatError("the erofs shares extents (dedupe), which is not read")
        if kind & _TYPES == _CONTINUES:
            return self._continued(block & 0xFFFF)
        return self._beginning(kind & _TYPES, value, block)

    def _continued(self, value: int) -> _Entry:
        if not self._has_counts:
            return _Entry(_CONTINUES, blocks=1)
        return _Entry(_CONTINUES, blocks=value & _MAX_COUNT if value & _COUNT else 0)

    def _beginning(self, kind: int, offset: int, block: int) -> _Entry:
        if kind == _SECOND or offset >> self._block_bits:
            raise FormatError(
                f"the erofs has an extent of type {kind} at offset {offset} of a block, which is not read"
            )
        return _Entry(kind, offset, block)


def read_index(read_at: ReadAt, behind: int, size: int, block_bits: int, *, is_compact: bool) -> Index:
    """Read the header of a compressed file's index.

    Args:
        read_at: reads the file system, and refuses what does not lie in it.
        behind: offset behind the inode and its extended attributes.
        size: bytes of the file.
        block_bits: block size as a power of two.
        is_compact: the entries are in packs (layout 3).

    Returns:
        the index, whose entries are read when extents are asked for.

    Raises:
        FormatError: it uses what is not read.
    """
    position = -(-behind // _ALIGNMENT) * _ALIGNMENT
    header = read_at(position, _HEADER.size)
    packed, flags, compression, cluster_bits = _HEADER.unpack(header)
    parts: tuple[_Packs, ...] = ()
    if cluster_bits & _WHOLLY_PACKED:
        packed, flags = int.from_bytes(header, "little") - (_WHOLLY_PACKED << 56), _END_PACKED
    elif flags & ~_FLAGS or cluster_bits:
        raise FormatError(
            f"the erofs has a file with flags {flags:#x} and clusters {cluster_bits:#x}, which is not read"
        )
    elif is_compact:
        parts = _compact_parts(
            position + _HEADER.size, -(-size >> block_bits), block_bits, is_short=bool(flags & _SHORT)
        )
    else:
        parts = (_Packs(0, position + _HEADER.size + _PADDING, 1, _WHOLE_ENTRY.size),)
    return Index(
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
    """The packs of an index that begins at ``position``."""
    if block_bits > _MAX_BITS[is_short]:
        raise FormatError(f"the erofs is damaged: an index of packs with blocks of {1 << block_bits} bytes")
    aligned = -position % 32 // 4
    short = max(clusters - aligned, 0) // 16 * 16 if is_short else 0
    return (
        _Packs(0, position, entries=2, length=8),
        _Packs(aligned, position + 4 * aligned, entries=16, length=32),
        _Packs(aligned + short, position + 4 * aligned + 2 * short, entries=2, length=8),
    )
