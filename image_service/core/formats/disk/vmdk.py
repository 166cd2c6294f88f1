"""VMDK in one file: monolithicSparse and streamOptimized.

    directory     sector of a grain table (4), or 0, for each table; all numbers are little-endian
    grain table   sector of a grain (4), or 0; 1, if a flag allows it: the grain has zeros
    grain         the disk's bytes
    compressed    its first sector on the disk (8), number of the bytes that follow (4), zlib stream

The first copy of directory and tables that some images have is not read.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.formats.decompress import decompress, decompress_zlib
from image_service.core.formats.disk.block_map import (
    CACHE_BYTES,
    BlockStarts,
    DiskRun,
    decode_table,
    find_extents,
    run_reader,
)
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat, VirtualDisk
from image_service.core.formats.disk.vmdk_header import TABLE_ENTRIES, VmdkHeader, read_vmdk_header
from image_service.core.formats.reading import check_inside, read_exactly

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

_TABLE_BYTES = 4 * TABLE_ENTRIES
_ZERO_GRAIN = 1
_PAGE_ENTRIES = 8192
_GRAIN_HEAD = struct.Struct("<QI")


def read_vmdk(read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk in a VMDK image of ``size`` bytes.

    Raises:
        FormatError: it is damaged, has a parent, or refers to other files.
    """
    header = read_vmdk_header(read_at, size)
    grains = _Grains(read_at, size, header)
    return VirtualDisk(
        DiskFormat.VMDK,
        header.subformat,
        header.virtual_size,
        run_reader(read_at, header.virtual_size, grains.walk),
        lambda: find_extents(grains.walk(0, header.virtual_size, BlockStarts(size, header.grain))),
    )


class _Grains:
    """The grains of a disk in a file of ``size`` bytes."""

    def __init__(self, read_at: ReadAt, size: int, header: VmdkHeader) -> None:
        self._read_at = read_at
        self._size = size
        self._header = header
        self._grain = header.grain
        self._zero_entries = {0, _ZERO_GRAIN} if header.zero_grains else {0}
        self._page = lru_cache(8)(self._read_page)
        self._table = lru_cache(256)(self._read_table)
        self._unpack = lru_cache(max(1, CACHE_BYTES // header.grain))(self._unpack_grain)

    def walk(self, offset: int, end: int, starts: BlockStarts | None = None) -> Iterator[DiskRun]:
        """Find the runs of the disk; ``starts`` gets the grains that are met."""
        table_bytes = self._grain * TABLE_ENTRIES
        while offset < end:
            index = offset // table_bytes
            page, position = self._page(index // _PAGE_ENTRIES), index % _PAGE_ENTRIES
            sector = page[position]
            table = self._table(sector) if sector else None
            behind = position + 1
            if table is None:  # nor have the next ones data, if they are the same
                while behind < len(page) and page[behind] == sector:
                    behind += 1
            stop = min(end, (index + behind - position) * table_bytes)
            if table is None:
                yield DiskRun(offset, stop - offset, None)
                offset = stop
            while table is not None and offset < stop:
                inside = offset % self._grain
                length = min(stop - offset, self._grain - inside)
                yield self._find_run(table, offset, inside, length, starts)
                offset += length

    def _find_run(
        self, table: array[int], offset: int, inside: int, length: int, starts: BlockStarts | None
    ) -> DiskRun:
        number = offset // self._grain
        sector = table[number % TABLE_ENTRIES]
        if sector in self._zero_entries:
            return DiskRun(offset, length, None)
        start = sector * SECTOR_BYTES
        if start < self._header.metadata_bytes:
            end = self._header.metadata_bytes
            raise FormatError(f"grain {number} is at offset {start}, in the metadata, which ends at {end}")
        if self._header.compressed:
            if starts:
                self._grain_length(number, start)
            return DiskRun(offset, length, partial(self._read_compressed, number, start, inside, length))
        check_inside("the file", start, inside + length, self._size)
        if starts:
            starts.take(f"grain {number}", start)
        return DiskRun(offset, length, start + inside)

    def _grain_length(self, number: int, start: int) -> int:
        """Return how many bytes the compressed grain at ``start`` has."""
        sector, length = _GRAIN_HEAD.unpack(read_exactly(self._read_at, start, _GRAIN_HEAD.size))
        right, limit = number * self._grain // SECTOR_BYTES, 2 * self._grain
        if sector != right or not 0 < length <= limit:
            raise FormatError(
                f"the compressed grain at offset {start} is of sector {sector}, and has {length} bytes;"
                f" sector {right}, and at most {limit} bytes, are right"
            )
        check_inside("the file", start + _GRAIN_HEAD.size, length, self._size)
        return int(length)

    def _read_compressed(self, number: int, start: int, inside: int, length: int) -> bytes:
        part = self._unpack(number, start)[inside : inside + length]
        if len(part) != length:
            raise FormatError(f"the compressed grain at offset {start} lacks {length - len(part)} bytes")
        return part

    def _unpack_grain(self, number: int, start: int) -> bytes:
        packed = read_exactly(self._read_at, start + _GRAIN_HEAD.size, self._grain_length(number, start))
        return decompress(decompress_zlib, packed, self._grain, f"the compressed grain at offset {start}")

    def _read_page(self, page: int) -> array[int]:
        position = page * _PAGE_ENTRIES * 4
        length = min(_PAGE_ENTRIES * 4, self._header.directory_bytes - position)
        return decode_table(
            read_exactly(self._read_at, self._header.directory + position, length), "I", "little"
        )

    def _read_table(self, sector: int) -> array[int] | None:
        """Return a grain table; None if all its grains have zeros; such a table may be shared."""
        offset = sector * SECTOR_BYTES
        if not self._header.compressed:
            check_inside("the metadata", offset, _TABLE_BYTES, self._header.metadata_bytes)
        table = decode_table(read_exactly(self._read_at, offset, _TABLE_BYTES), "I", "little")
        return table if set(table) - self._zero_entries else None
