"""VHD (Virtual Hard Disk, 2006): fixed and dynamic disks.

    offset  size  footer: the last 512 bytes, of a dynamic disk the first too; numbers are big-endian
    0       8     conectix
    12      4     version: 1.0
    16      8     offset of the dynamic header; all ones in a fixed disk
    48      8     bytes of the disk
    60      4     type: 2 fixed, 3 dynamic, 4 differencing
    64      4     checksum: the complement of the sum of all other bytes

    offset  size  dynamic header
    0       8     cxsparse
    16      8     offset of the table
    24      4     version: 1.0
    28      4     entries of the table
    32      4     bytes of a block
    36      4     checksum

An entry of the table is the sector of a block: a bitmap of its sectors, then its bytes. A sector whose bit is
not set has zeros, so the bitmap is not read.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.formats.disk.block_map import (
    BlockStarts,
    DiskRun,
    check_virtual_size,
    decode_table,
    find_extents,
    run_reader,
)
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat, VirtualDisk
from image_service.core.formats.disk.raw import flat_disk
from image_service.core.formats.reading import Span, check_disjoint, check_inside, read_exactly

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

VHD_MAGIC = b"conectix"
FOOTER_BYTES = 512

_FOOTER = struct.Struct(">8s4xIQ24xQ4xII")
_FOOTER_CHECKSUM, _HEADER_CHECKSUM = 64, 36
_VERSION = 0x10000
_FIXED, _DYNAMIC, _DIFFERENCING = 2, 3, 4
_HEADER_MAGIC = b"cxsparse"
_HEADER = struct.Struct(">8s8xQIIII")
_HEADER_BYTES = 1024
_BLOCK_BYTES = [1 << bits for bits in range(12, 28 + 1)]
_MAX_ENTRIES = 2 << 20  # a disk of 2 TiB, the format's most, with half of the usual blocks of 2 MiB
_NO_BLOCK = 0xFFFFFFFF
_PAGE_ENTRIES = 4096
_MIN_BYTES = {_FIXED: FOOTER_BYTES, _DYNAMIC: 2 * FOOTER_BYTES + _HEADER_BYTES}


def read_vhd(read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk in a VHD image of ``size`` bytes.

    Its size is the footer's number, not the product of its geometry of cylinders, heads and sectors.

    Raises:
        FormatError: it is damaged, or a differencing disk.
    """
    if size < FOOTER_BYTES:
        raise FormatError(f"the VHD image has {size} bytes, less than its footer of {FOOTER_BYTES}")
    offset = size - FOOTER_BYTES
    footer = read_exactly(read_at, offset, FOOTER_BYTES)
    magic, version, header_offset, virtual_size, kind, checksum = _FOOTER.unpack_from(footer)
    if magic != VHD_MAGIC or version != _VERSION:
        raise FormatError(
            f"the footer at offset {offset} is not of VHD 1.0: {magic.hex()}, version {version:#x}"
        )
    _check_checksum("footer", offset, footer, _FOOTER_CHECKSUM, checksum)
    if kind == _DIFFERENCING:
        raise FormatError(
            "the VHD image is a differencing disk: its parent is another file, which is not read"
        )
    if kind not in _MIN_BYTES:
        raise FormatError(f"the VHD image has the type {kind}; 2 (fixed) and 3 (dynamic) are supported")
    if size < _MIN_BYTES[kind] or virtual_size % SECTOR_BYTES:
        raise FormatError(f"the VHD image of {size} bytes cannot have a disk of {virtual_size} bytes")
    check_virtual_size(virtual_size)
    starts_with_footer = read_exactly(read_at, 0, FOOTER_BYTES)
    if kind == _DYNAMIC:
        if starts_with_footer != footer:
            raise FormatError(f"the footer at offset {offset} differs from its copy at offset 0")
        return _read_dynamic(read_at, offset, header_offset, virtual_size)
    if virtual_size != offset:
        raise FormatError(f"the footer claims a disk of {virtual_size} bytes; {offset} are before it")
    if offset and starts_with_footer.startswith(VHD_MAGIC):
        raise FormatError(
            "the fixed disk begins with a footer, which others would take for that of a dynamic one"
        )
    return flat_disk(DiskFormat.VHD, "fixed", read_at, virtual_size)


def _read_dynamic(read_at: ReadAt, limit: int, header_offset: int, virtual_size: int) -> VirtualDisk:
    """Return the disk whose structures end at ``limit``, where the footer is."""
    check_inside("the file before its footer", header_offset, _HEADER_BYTES, limit)
    header = read_exactly(read_at, header_offset, _HEADER_BYTES)
    magic, table_offset, version, entries, block_bytes, checksum = _HEADER.unpack_from(header)
    if magic != _HEADER_MAGIC or version != _VERSION:
        raise FormatError(
            f"no dynamic header of VHD 1.0 is at offset {header_offset}: it begins with {magic.hex()}"
        )
    _check_checksum("dynamic header", header_offset, header, _HEADER_CHECKSUM, checksum)
    if block_bytes not in _BLOCK_BYTES:
        raise FormatError(
            f"the VHD image has blocks of {block_bytes} bytes; powers of two up to 256 MiB are valid"
        )
    needed = -(-virtual_size // block_bytes)
    if not needed <= entries <= _MAX_ENTRIES:
        raise FormatError(
            f"the table at offset {table_offset} has {entries} entries;"
            f" {needed} are needed for a disk of {virtual_size} bytes, {_MAX_ENTRIES} are supported"
        )
    check_inside("the file before its footer", table_offset, entries * 4, limit)
    areas = (
        Span("footer's copy", 0, FOOTER_BYTES),
        Span("dynamic header", header_offset, _HEADER_BYTES),
        Span("table", table_offset, entries * 4),
    )
    check_disjoint(areas)
    blocks = _VhdBlocks(read_at, limit, areas, block_bytes)
    return VirtualDisk(
        DiskFormat.VHD,
        "dynamic",
        virtual_size,
        run_reader(read_at, virtual_size, blocks.walk),
        lambda: find_extents(blocks.walk(0, virtual_size, BlockStarts(limit, blocks.stored_bytes))),
    )


def _check_checksum(name: str, offset: int, data: bytes, position: int, stated: int) -> None:
    actual = ~(sum(data) - sum(data[position : position + 4])) & 0xFFFFFFFF
    if actual != stated:
        raise FormatError(
            f"the {name} at offset {offset} states the checksum {stated:#x}; it has {actual:#x}"
        )


class _VhdBlocks:
    """The blocks of a dynamic disk.

    Args:
        limit: where the blocks end.
        areas: of the metadata; the last one is the table.
        block_bytes: of the disk, in each block.
    """

    def __init__(self, read_at: ReadAt, limit: int, areas: tuple[Span, ...], block_bytes: int) -> None:
        self._read_at = read_at
        self._limit = limit
        self._areas = areas
        self._block_bytes = block_bytes
        self._bitmap_bytes = -(-block_bytes // (8 * SECTOR_BYTES * SECTOR_BYTES)) * SECTOR_BYTES
        self.stored_bytes = self._bitmap_bytes + block_bytes
        self._page = lru_cache(16)(self._read_page)

    def walk(self, offset: int, end: int, starts: BlockStarts | None = None) -> Iterator[DiskRun]:
        """Find the runs of the disk; ``starts`` gets the blocks that are met."""
        while offset < end:
            index, inside = divmod(offset, self._block_bytes)
            length = min(end - offset, self._block_bytes - inside)
            entry = self._page(index // _PAGE_ENTRIES)[index % _PAGE_ENTRIES]
            source = None
            if entry != _NO_BLOCK:
                start = entry * SECTOR_BYTES
                self._check_block(f"block {index}", start, starts)
                source = start + self._bitmap_bytes + inside
            yield DiskRun(offset, length, source)
            offset += length

    def _check_block(self, name: str, start: int, starts: BlockStarts | None) -> None:
        check_inside("the file before its footer", start, self.stored_bytes, self._limit)
        for area in self._areas:
            if start < area.offset + area.length and area.offset < start + self.stored_bytes:
                raise FormatError(f"{name} at offset {start} overlaps the {area.path}: {area}")
        if starts:
            starts.take(name, start)

    def _read_page(self, page: int) -> array[int]:
        table, position = self._areas[-1], page * _PAGE_ENTRIES * 4
        length = min(_PAGE_ENTRIES * 4, table.length - position)
        return decode_table(read_exactly(self._read_at, table.offset + position, length), "I", "big")
