"""qcow2, versions 2 and 3: the active disk; snapshots in the image are not read.

    L1 entry   offset of an L2 table (bits 9 to 55), or 0; bit 63: no snapshot shares it
    L2 table   one cluster of entries
    L2 entry   offset of a cluster (bits 9 to 55), or 0; bit 0: it reads as zeros; bit 62: compressed
    compressed offset of the data (x bits), number of further sectors (62 - x bits); x is 70 - cluster bits
    extended   an L2 entry, and for 32 subclusters a bit each: it reads as zeros (high), it is stored (low)

All numbers are big-endian. Subclusters that an extended entry has neither stored nor as zeros are zeros too:
there is no backing file.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.formats.decompress import decompress
from image_service.core.formats.disk.block_map import (
    CACHE_BYTES,
    DiskRun,
    UsedBlocks,
    decode_table,
    join_extents,
    run_reader,
)
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat, VirtualDisk
from image_service.core.formats.disk.qcow2_header import REFCOUNT_TABLE, Qcow2Header, read_qcow2_header
from image_service.core.formats.reading import Span, check_inside, read_exactly

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

_PAGE_ENTRIES = 8192  # of the L1 and the refcount table, read at once
_PAGE_BYTES = 8 * _PAGE_ENTRIES
_OFFSET = (1 << 56) - (1 << 9)
_COPIED, _COMPRESSED, _ZERO = 1 << 63, 1 << 62, 1
_L1_RESERVED = ~(_OFFSET | _COPIED)
_RESERVED = ~(_OFFSET | _COPIED | _COMPRESSED | _ZERO)
_SUBCLUSTERS = 32
_SUBCLUSTER_MASK = (1 << _SUBCLUSTERS) - 1


def read_qcow2(read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk in a qcow2 image of ``size`` bytes.

    Raises:
        FormatError: it is damaged, or needs another file, a key or an unknown feature.
    """
    header = read_qcow2_header(read_at, size)
    tables = _Qcow2Tables(read_at, size, header)
    return VirtualDisk(
        DiskFormat.QCOW2,
        f"v{header.version}",
        header.virtual_size,
        run_reader(read_at, header.virtual_size, tables.walk),
        lambda: join_extents(tables.check()),
    )


class _Qcow2Tables:
    """The tables of an image of ``size`` bytes."""

    def __init__(self, read_at: ReadAt, size: int, header: Qcow2Header) -> None:
        self._read_at = read_at
        self._size = size
        self._header = header
        self._cluster = header.cluster
        self._table_bytes = header.table_bytes
        self._compressed_bits = 71 - header.cluster.bit_length()  # of the offset in the file
        is_zero_wrong = header.extended or header.version < 3  # noqa: PLR2004 - versions of the format
        self._wrong_bits = _RESERVED | (header.cluster - 1) & _OFFSET | (_ZERO if is_zero_wrong else 0)
        cached = max(1, CACHE_BYTES // header.cluster)
        self._l1_page = lru_cache(8)(self._read_l1_page)
        self._l2_table = lru_cache(cached)(self._read_l2_table)
        self._unpack = lru_cache(cached)(self._unpack_cluster)

    def _begin_check(self) -> UsedBlocks:
        """Return which clusters the header, its tables and the refcount blocks have."""
        used = UsedBlocks(self._size, self._cluster)
        used.take("the header", 0, 1)
        for table in self._header.tables:
            used.take(f"the {table.path}", table.offset, table.length)
            if table.path == REFCOUNT_TABLE:
                for position in range(0, table.length, _PAGE_BYTES):
                    for entry in self._read_numbers(table, position):
                        if entry:
                            used.take("a refcount block", entry, self._cluster)
        return used

    def check(self) -> Iterator[tuple[int, int]]:
        """Find the extents of the active disk, in whole clusters, after the tables were checked."""
        used = self._begin_check()
        for index in range(-(-self._header.virtual_size // self._table_bytes)):
            entry = self._l1_page(index // _PAGE_ENTRIES)[index % _PAGE_ENTRIES]
            if entry:
                table = self._find_l2_table(index, entry, used)
                if table:
                    yield from self._check_table(table, index * self._table_bytes, used)

    def _check_table(self, table: array[int], start: int, used: UsedBlocks) -> Iterator[tuple[int, int]]:
        """Find the extents of an L2 table, whose clusters ``used`` gets.

        An image may have millions of clusters, none of them behind the one before. So there is little to do
        for each, and `walk` checks the entries in doubt.
        """
        cluster, wrong_bits = self._cluster, self._wrong_bits
        width = 2 if self._header.extended else 1
        stop = min(start + self._table_bytes, self._header.virtual_size)
        count = -(-(stop - start) // cluster)
        has_data = bytearray(count)
        for number in range(count):
            entry = table[number * width]
            bitmap = table[number * width + 1] if width > 1 else 0
            host = entry & _OFFSET
            if entry & _COMPRESSED:
                stored, is_right = 1, not bitmap
            else:
                stored = bitmap & _SUBCLUSTER_MASK if width > 1 else host and not entry & _ZERO
                is_wrong = entry & wrong_bits or stored & bitmap >> _SUBCLUSTERS or (stored and not host)
                is_right = not is_wrong and host + cluster <= self._size
            offset = start + number * cluster
            if not is_right:
                for _ in self.walk(offset, min(offset + cluster, stop)):
                    pass
            if entry & _COMPRESSED:
                place, length = self._find_compressed(entry, offset)
                if not used.share_blocks(place // cluster, (place + length - 1) // cluster):
                    used.share(f"the compressed cluster of offset {offset}", place, length)
            elif host and not used.take_block(host // cluster):
                used.take(f"the cluster of offset {offset}", host, cluster)
            if stored:
                has_data[number] = 1
        first = has_data.find(1)
        while first >= 0:
            behind = has_data.find(0, first) % (count + 1)  # none: behind the last
            yield start + first * cluster, min(stop, start + behind * cluster) - start - first * cluster
            first = has_data.find(1, behind)

    def walk(self, offset: int, end: int) -> Iterator[DiskRun]:
        """Find the runs of the active disk."""
        while offset < end:
            index = offset // self._table_bytes
            page, position = self._l1_page(index // _PAGE_ENTRIES), index % _PAGE_ENTRIES
            behind = position + 1
            if page[position]:
                table = self._find_l2_table(index, page[position])
            else:
                table = None
                while behind < len(page) and not page[behind]:
                    behind += 1
            stop = min(end, (index + behind - position) * self._table_bytes)
            if table is None:
                yield DiskRun(offset, stop - offset, None)
            elif self._header.extended:
                yield from self._walk_extended(table, offset, stop)
            else:
                yield from self._walk_table(table, offset, stop)
            offset = stop

    def _find_l2_table(self, index: int, entry: int, used: UsedBlocks | None = None) -> array[int] | None:
        """Return the L2 table of an L1 entry; None if all that it has is zeros."""
        offset = entry & _OFFSET
        if entry & _L1_RESERVED or not offset or offset % self._cluster:
            raise FormatError(f"L1 entry {index} is damaged: {entry:#x}")
        if used:
            used.take(f"the L2 table of L1 entry {index}", offset, self._cluster)
        return self._l2_table(offset)

    def _walk_table(self, table: array[int], offset: int, stop: int) -> Iterator[DiskRun]:
        cluster = self._cluster
        last = (stop - 1) % self._table_bytes // cluster
        while offset < stop:
            inside = offset % cluster
            index = first = offset % self._table_bytes // cluster
            entry = table[first]
            if entry & _COMPRESSED:
                yield self._compressed_run(entry, offset, min(stop, offset - inside + cluster))
                index += 1
            else:
                step = cluster if entry & _OFFSET else 0
                expected = entry
                while index <= last and table[index] == expected:
                    index += 1
                    expected += step
                source = self._check_entry(entry, offset)
                if entry & _ZERO:
                    source = None
                length = min(stop, offset - inside + (index - first) * cluster) - offset
                yield self._stored_run(offset, length, None if source is None else source + inside)
            offset += cluster * (index - first) - inside

    def _walk_extended(self, table: array[int], offset: int, stop: int) -> Iterator[DiskRun]:
        cluster, subcluster = self._cluster, self._cluster // _SUBCLUSTERS
        while offset < stop:
            start = offset - offset % cluster
            end = min(stop, start + cluster)
            index = offset % self._table_bytes // cluster * 2
            entry, bitmap = table[index], table[index + 1]
            stored, zeros = bitmap & _SUBCLUSTER_MASK, bitmap >> _SUBCLUSTERS
            if entry & _COMPRESSED:
                host, wrong = None, bool(bitmap)
            else:
                host = self._check_entry(entry, offset)
                wrong = bool(stored & zeros or entry & _ZERO or (stored and host is None))
            if wrong:
                raise FormatError(
                    f"the L2 entry of offset {start} is damaged: {entry:#x}, subclusters {bitmap:#x}"
                )
            if entry & _COMPRESSED:
                yield self._compressed_run(entry, offset, end)
                offset = end
            while offset < end:
                number = (offset - start) // subcluster
                bit = stored >> number & 1
                while number < _SUBCLUSTERS and stored >> number & 1 == bit:
                    number += 1
                next_offset = min(end, start + number * subcluster)
                source = host + offset - start if bit and host is not None else None
                yield self._stored_run(offset, next_offset - offset, source)
                offset = next_offset

    def _check_entry(self, entry: int, offset: int) -> int | None:
        """Return the offset in the file of the cluster of an L2 entry; None if it has none."""
        host = entry & _OFFSET
        if entry & _RESERVED or host % self._cluster or (entry & _ZERO and self._header.version < 3):  # noqa: PLR2004 - as above
            raise FormatError(f"the L2 entry of offset {offset} is damaged: {entry:#x}")
        return host or None

    def _stored_run(self, offset: int, length: int, source: int | None) -> DiskRun:
        if source is not None:
            check_inside("the file", source, length, self._size)
        return DiskRun(offset, length, source)

    def _compressed_run(self, entry: int, offset: int, end: int) -> DiskRun:
        """Return the run of one compressed cluster that ends at ``end``."""
        host, length = self._find_compressed(entry, offset)
        inside = offset % self._cluster
        return DiskRun(
            offset, end - offset, partial(self._read_compressed, host, length, inside, end - offset)
        )

    def _find_compressed(self, entry: int, offset: int) -> tuple[int, int]:
        """Return where in the file a compressed cluster is: offset and length."""
        offset_bits = self._compressed_bits
        host = entry & ((1 << offset_bits) - 1)
        length = ((entry & ~_COMPRESSED) >> offset_bits) * SECTOR_BYTES + SECTOR_BYTES - host % SECTOR_BYTES
        if entry & _COPIED or not 0 < host < self._size:
            raise FormatError(
                f"the L2 entry of the compressed cluster of offset {offset} is damaged: {entry:#x}"
            )
        return host, min(length, self._size - host)  # its last sector may end behind the file

    def _read_compressed(self, host: int, packed_length: int, inside: int, length: int) -> bytes:
        return self._unpack(host, packed_length)[inside : inside + length]

    def _unpack_cluster(self, host: int, packed_length: int) -> bytes:
        where = f"the compressed cluster at offset {host}"
        packed = read_exactly(self._read_at, host, packed_length)
        content = decompress(self._header.decompressor, packed, self._cluster, where)
        if len(content) != self._cluster:
            raise FormatError(f"{where} has {len(content)} bytes, not {self._cluster}")
        return content

    def _read_l1_page(self, page: int) -> array[int]:
        return self._read_numbers(self._header.tables[0], page * _PAGE_BYTES)

    def _read_numbers(self, table: Span, position: int) -> array[int]:
        length = min(_PAGE_BYTES, table.length - position)
        return decode_table(read_exactly(self._read_at, table.offset + position, length), "Q", "big")

    def _read_l2_table(self, offset: int) -> array[int] | None:
        data = read_exactly(self._read_at, offset, self._cluster)
        return decode_table(data, "Q", "big") if data.count(0) != len(data) else None
