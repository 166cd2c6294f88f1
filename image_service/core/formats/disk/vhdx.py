"""VHDX (MS-VHDX): fixed and dynamic disks, written and closed by their hypervisor.

    offset  size  all numbers little-endian
    0       8     vhdxfile
    64 KiB  4096  header, and another at 128 KiB: the valid one with the greater sequence number counts
    192 KiB 64 K  region table, and its copy at 256 KiB

    header        head, CRC-32C (4), sequence number (8), three GUIDs (16 each; the third: of the log),
                  version of the log (2), version (2), bytes of the log (4), its offset (8)
    region table  regi, CRC-32C (4), number of entries (4), unused (4); for each: GUID, offset (8), bytes (4),
                  whether it is required (4)
    metadata      metadata, unused (2), number of entries (2); from offset 32 on, for each: GUID, offset (4),
              bytes (4), flags (4)

The block allocation table has 8 bytes for each block: its state (3 bits), its offset (bits 20 to 63). Behind
the entries of each chunk of 2^23 sectors is one for a bitmap, which disks without a parent do not have.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.crc32c import crc32c
from image_service.core.formats.disk.block_map import (
    DiskRun,
    UsedBlocks,
    check_virtual_size,
    decode_table,
    find_extents,
    run_reader,
)
from image_service.core.formats.disk.model import DiskFormat, VirtualDisk
from image_service.core.formats.reading import Span, SpanReader, check_disjoint, check_inside, read_exactly

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping

    from image_service.core.formats.reading import ReadAt

VHDX_MAGIC = b"vhdxfile"

_MIB = 1 << 20
_HEADER_OFFSETS = (64 << 10, 128 << 10)
_HEADER = struct.Struct("<4sIQ32x16sHHIQ")
_HEADER_BYTES = 4096
_REGION_OFFSETS = (192 << 10, 256 << 10)
_REGION_TABLE_BYTES = 64 << 10
_TABLE_HEAD, _REGION = struct.Struct("<4sII4x"), struct.Struct("<16sQII")
_MAX_REGIONS = 2047
_METADATA_HEAD, _ITEM = struct.Struct("<8s2xH"), struct.Struct("<16sIII4x")
_ITEMS_OFFSET = 32
_MAX_ITEMS = 2047
_REQUIRED = 1 << 2  # in the flags of an item

_BAT = uuid.UUID("2dc27766-f623-4200-9d64-115e9bfd4a08")
_METADATA = uuid.UUID("8b7ca206-4790-4b9a-b8fe-575f050f886e")
_FILE_PARAMETERS = uuid.UUID("caa16737-fa36-4d43-b3b6-33f0aa44e76b")
_VIRTUAL_SIZE = uuid.UUID("2fa54224-cd1b-4876-b211-5dbed83bf4b8")
_SECTOR_SIZE = uuid.UUID("8141bf1d-a96f-4709-ba47-f233a8faab5f")
# Fields of the items that are read; of others, that are known, none matters.
_FIELDS: Final[Mapping[uuid.UUID, struct.Struct]] = {
    _FILE_PARAMETERS: struct.Struct("<II"),
    _VIRTUAL_SIZE: struct.Struct("<Q"),
    _SECTOR_SIZE: struct.Struct("<I"),
}
_IGNORED: Final = {
    uuid.UUID("beca12ab-b2e6-4523-93ef-c309e000c746"),  # SCSI page 83: the disk's identity
    uuid.UUID("cda348c7-445d-4471-9cc9-e9885251c556"),  # physical sector size
    uuid.UUID(
        "a8d35f2d-b30b-454d-abf7-d3d84834ab0c"
    ),  # parent locator: without effect, if there is no parent
}
_LEAVE_BLOCKS_ALLOCATED, _HAS_PARENT = 1 << 0, 1 << 1
_BLOCK_BYTES = [1 << bits for bits in range(20, 28 + 1)]
_CHUNK_SECTORS = 1 << 23
_MAX_TABLE_BYTES = 16 << 20  # a disk of 64 TiB with the usual blocks of 32 MiB

_PRESENT = 6
_STATES = {0, 1, 2, 3, _PRESENT}  # not present, undefined, zero, unmapped; others are of differencing disks
_STATE, _RESERVED = 7, _MIB - 8
_PAGE_ENTRIES = 8192


def read_vhdx(read_at: ReadAt, size: int) -> VirtualDisk:
    """Return the disk in a VHDX image of ``size`` bytes.

    Raises:
        FormatError: it is damaged, or a differencing disk, or its log has to be replayed.
    """
    layout = _read_layout(read_at, size)
    blocks = _VhdxBlocks(read_at, size, layout)
    return VirtualDisk(
        DiskFormat.VHDX,
        layout.subformat,
        layout.virtual_size,
        run_reader(read_at, layout.virtual_size, blocks.walk),
        lambda: find_extents(blocks.walk(0, layout.virtual_size, blocks.begin_check())),
        layout.sector_bytes,
    )


@attrs.frozen
class _VhdxLayout:
    """The structures of an image.

    Args:
        subformat: ``fixed`` or ``dynamic``.
        areas: of all metadata.
        table: of them, the block allocation table.
        virtual_size: bytes of the disk.
        block_bytes: of the disk, in each block.
        chunk_blocks: blocks between two entries for bitmaps.
    """

    subformat: str
    areas: tuple[Span, ...]
    table: Span
    virtual_size: int
    block_bytes: int
    chunk_blocks: int

    @property
    def sector_bytes(self) -> int:
        """Bytes of a logical sector of the disk."""
        return self.chunk_blocks * self.block_bytes // _CHUNK_SECTORS


def _read_layout(read_at: ReadAt, size: int) -> _VhdxLayout:
    magic = read_exactly(read_at, 0, len(VHDX_MAGIC))
    if magic != VHDX_MAGIC:
        raise FormatError(f"no VHDX image: it begins with {magic.hex()}")
    log = _read_header(read_at)
    regions = _read_regions(read_at, size)
    areas = (Span("header section", 0, _MIB), log, *regions.values())
    check_disjoint(area for area in areas if area.length)
    table = regions[_BAT]
    metadata = SpanReader(read_at, regions[_METADATA])
    subformat, virtual_size, block_bytes, chunk_blocks = _read_metadata(metadata)
    last = -(-virtual_size // block_bytes) - 1
    needed = 8 * (last + last // chunk_blocks + 1)
    if needed > min(table.length, _MAX_TABLE_BYTES):
        raise FormatError(
            f"a disk of {virtual_size} bytes needs a block allocation table of {needed} bytes;"
            f" it has {table.length}, and {_MAX_TABLE_BYTES} are supported"
        )
    return _VhdxLayout(subformat, areas, table, virtual_size, block_bytes, chunk_blocks)


def _read_header(read_at: ReadAt) -> Span:
    """Return the area of the log, which has to be empty."""
    valid = []
    for offset in _HEADER_OFFSETS:
        header = read_exactly(read_at, offset, _HEADER_BYTES)
        magic, checksum, sequence, *fields = _HEADER.unpack_from(header)
        if magic == b"head" and checksum == _checksum(header):
            valid.append((sequence, fields))
    if not valid:
        raise FormatError("the VHDX image has no valid header, neither at offset 65536 nor at 131072")
    _, (log_guid, _, version, log_bytes, log_offset) = max(valid, key=lambda header: header[0])
    if version != 1:
        raise FormatError(f"the VHDX image has version {version}; 1 is supported")
    if any(log_guid):
        raise FormatError(
            "the log of the VHDX image has to be replayed: its hypervisor does so when it opens the image"
        )
    return Span("log", log_offset, log_bytes)


def _checksum(data: bytes) -> int:
    """Return the CRC-32C of a structure whose bytes 4 to 7 are its checksum."""
    return crc32c(data[:4] + bytes(4) + data[8:])


def _read_regions(read_at: ReadAt, size: int) -> dict[uuid.UUID, Span]:
    for offset in _REGION_OFFSETS:
        table = read_exactly(read_at, offset, _REGION_TABLE_BYTES)
        magic, checksum, count = _TABLE_HEAD.unpack_from(table)
        if magic == b"regi" and count <= _MAX_REGIONS and checksum == _checksum(table):
            break
    else:
        raise FormatError("the VHDX image has no valid region table, neither at offset 196608 nor at 262144")
    regions = {}
    for index in range(count):
        guid, offset, length, required = _REGION.unpack_from(table, _TABLE_HEAD.size + index * _REGION.size)
        region = uuid.UUID(bytes_le=guid)
        if region not in {_BAT, _METADATA}:
            if required & 1:
                raise FormatError(f"the VHDX image requires the unknown region {region}")
            continue
        if region in regions or offset % _MIB or length % _MIB:
            raise FormatError(
                f"the region {region} is twice in its table, or not in whole MiB: offset {offset}"
            )
        check_inside("the file", offset, length, size)
        regions[region] = Span(f"region {region}", offset, length)
    for region in (_BAT, _METADATA):
        if region not in regions:
            raise FormatError(f"the VHDX image lacks the region {region}")
    return regions


def _read_metadata(read_at: ReadAt) -> tuple[str, int, int, int]:
    """Return the subformat, bytes of the disk and of a block, and the number of blocks of a chunk."""
    magic, count = _METADATA_HEAD.unpack(read_at(0, _METADATA_HEAD.size))
    if magic != b"metadata" or count > _MAX_ITEMS:
        raise FormatError(
            f"the metadata table is damaged: it begins with {magic.hex()}, and has {count} entries"
        )
    entries = read_at(_ITEMS_OFFSET, count * _ITEM.size)
    values: dict[uuid.UUID, tuple[int, ...]] = {}
    for guid, offset, length, flags in _ITEM.iter_unpack(entries):
        item = uuid.UUID(bytes_le=guid)
        if item in _FIELDS:
            fields = _FIELDS[item]
            if item in values or length != fields.size:
                raise FormatError(
                    f"the metadata item {item} has {length} bytes, not {fields.size}, or is there twice"
                )
            values[item] = fields.unpack(read_at(offset, length))
        elif flags & _REQUIRED and item not in _IGNORED:
            raise FormatError(f"the VHDX image requires the unknown metadata item {item}")
    missing = [str(item) for item in _FIELDS if item not in values]
    if missing:
        raise FormatError(f"the VHDX image lacks the metadata items {', '.join(missing)}")
    (block_bytes, flags), (virtual_size,), (sector,) = (values[item] for item in _FIELDS)
    if flags & _HAS_PARENT:
        raise FormatError(
            "the VHDX image is a differencing disk: its parent is another file, which is not read"
        )
    if block_bytes not in _BLOCK_BYTES:
        raise FormatError(f"the VHDX image has blocks of {block_bytes} bytes; 1 to 256 MiB are valid")
    if sector not in {512, 4096} or virtual_size % sector:
        raise FormatError(
            f"the disk of {virtual_size} bytes has sectors of {sector} bytes; 512 and 4096 are valid"
        )
    check_virtual_size(virtual_size)
    subformat = "fixed" if flags & _LEAVE_BLOCKS_ALLOCATED else "dynamic"
    return subformat, virtual_size, block_bytes, _CHUNK_SECTORS * sector // block_bytes


class _VhdxBlocks:
    """The blocks of a disk in a file of ``size`` bytes."""

    def __init__(self, read_at: ReadAt, size: int, layout: _VhdxLayout) -> None:
        self._read_at = read_at
        self._size = size
        self._layout = layout
        self._page = lru_cache(16)(self._read_page)

    def begin_check(self) -> UsedBlocks:
        """Return which stretches of a MiB the metadata has."""
        used = UsedBlocks(self._size, _MIB)
        for area in self._layout.areas:
            used.take(f"the {area.path}", area.offset, area.length)
        return used

    def walk(self, offset: int, end: int, used: UsedBlocks | None = None) -> Iterator[DiskRun]:
        """Find the runs of the disk; ``used`` gets the blocks that are met."""
        while offset < end:
            block, inside = divmod(offset, self._layout.block_bytes)
            length = min(end - offset, self._layout.block_bytes - inside)
            index = block + block // self._layout.chunk_blocks
            entry = self._page(index // _PAGE_ENTRIES)[index % _PAGE_ENTRIES]
            state = entry & _STATE
            source = None
            if entry & _RESERVED or state not in _STATES:
                raise FormatError(f"the table's entry {index} of block {block} is damaged: {entry:#x}")
            if state == _PRESENT:
                start = entry - state
                check_inside("the file", start, inside + length, self._size)
                if start < _MIB:
                    raise FormatError(f"block {block} is at offset {start}, where the headers are")
                if used:
                    used.take(f"block {block}", start, self._layout.block_bytes)
                source = start + inside
            yield DiskRun(offset, length, source)
            offset += length

    def _read_page(self, page: int) -> array[int]:
        position = page * _PAGE_ENTRIES * 8
        length = min(_PAGE_ENTRIES * 8, self._layout.table.length - position)
        return decode_table(
            read_exactly(self._read_at, self._layout.table.offset + position, length), "Q", "little"
        )
