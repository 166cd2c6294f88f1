"""The partition tables of hybrid ISOs: an MBR, a GPT or both, by which a USB stick with the image boots.

An ISO that grows needs that partitions which hold it grow too, since Linux reads no byte behind their ends;
that partitions behind it, such as an appended EFI system partition, move behind its new end; and that the
backup GPT is at the end of the image. Partitions inside the ISO stay as they are.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.disk.gpt import GPT_ENTRY, GPT_HEADER, GPT_SIGNATURE, read_gpt_copy
from image_service.core.formats.iso9660.descriptors import holds_volume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.disk.gpt import GptEntry
    from image_service.core.formats.reading import ReadAt

BLOCK = 512
ALIGNMENT: Final = 1 << 20
"""Bytes; of the ends of ISOs that have partitions, and of partitions that move."""

_TABLE_AT, _ENTRY_BYTES, _ENTRIES = 446, 16, 4
_ENTRY = struct.Struct("<B3sB3sII")
_MAGIC = b"\x55\xaa"
_PROTECTIVE = 0xEE
_MAX_SECTORS = 0xFFFFFFFF
_MAX_CYLINDERS = 1024
_GEOMETRIES = ((64, 32), (255, 63))  # heads, sectors: those that ISOs are made with
_BEYOND = b"\xfe\xff\xff"
_GAP = "Gap"  # the name of entries with which xorriso fills space between others
_GPT_AT = BLOCK


@attrs.frozen
class Move:
    """A partition that moves, in bytes."""

    start: int
    length: int
    to: int


@attrs.frozen
class Growth:
    """What the partition tables of a grown ISO are.

    Args:
        patches: bytes by offset, in the base image.
        moves: partitions, by their new places.
        backup: the backup GPT, which ends the image; b"": it has none.
        size: of the image.
    """

    patches: tuple[tuple[int, bytes], ...]
    moves: tuple[Move, ...]
    backup: bytes
    size: int


@attrs.frozen
class _HybridEntry:
    at: int
    kind: int
    first: int
    sectors: int
    end: bytes
    data: bytes

    def resized(self, first: int, sectors: int) -> bytes:
        active, begin, kind, _, _, _ = _ENTRY.unpack(self.data)
        if first != self.first:
            begin = self._address(first)
        sectors = min(sectors, _MAX_SECTORS)
        return _ENTRY.pack(active, begin, kind, self._address(first + sectors - 1), first, sectors)

    def _address(self, sector: int) -> bytes:
        """Return a sector's address by cylinder, head and sector, in the geometry of the entry."""
        for heads, sectors in _GEOMETRIES:
            if _chs(self.first + self.sectors - 1, heads, sectors) == self.end:
                return _chs(sector, heads, sectors)
        return _BEYOND


class HybridTables:
    """The partition tables of an ISO of `size` bytes; it may have none.

    Raises:
        FormatError: its GPT is damaged.
    """

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at = read_at
        sector = read_at(0, BLOCK)
        self._mbr = tuple(_parse_mbr(sector)) if sector[510:512] == _MAGIC else ()
        has_gpt = bool(self._mbr) and read_at(_GPT_AT, len(GPT_SIGNATURE)) == GPT_SIGNATURE
        self._gpt = read_gpt_copy(read_at, size, BLOCK, 1) if has_gpt else None
        self._gpt_entries: tuple[GptEntry, ...] = tuple(self._gpt.parse_entries()) if self._gpt else ()
        areas = {(entry.first, entry.sectors) for entry in self._mbr if entry.kind != _PROTECTIVE}
        areas |= {(entry.first, entry.last - entry.first + 1) for entry in self._gpt_entries}
        inside = [
            (first * BLOCK, sectors * BLOCK)
            for first, sectors in sorted(areas)
            if 0 <= first * BLOCK < size and sectors > 0
        ]
        self._holders = frozenset(start for start, _ in inside if holds_volume(read_at, start))
        end = max((start + length for start, length in inside if start in self._holders), default=0)
        behind = {start: length for start, length in inside if end <= start}
        gaps = {entry.first * BLOCK for entry in self._gpt_entries if entry.name.startswith(_GAP)}
        self._behind = {start: length for start, length in behind.items() if end and start not in gaps}
        self._gaps = {start for start in gaps if end and end <= start}
        ends = [start + length for start, length in inside if start in self._holders or start in self._behind]
        self._trailing = max(0, size - max(ends)) if ends and not self._gpt else 0
        for start, length in self._behind.items():
            if start + length > size:
                raise FormatError(f"the partition at offset {start} leaves the image of {size} bytes")

    @property
    def are_there(self) -> bool:
        """Whether the image has partitions."""
        return bool(self._mbr)

    @property
    def volumes(self) -> tuple[int, ...]:
        """The offsets of partitions that hold volumes of their own, without that of the image."""
        return tuple(sorted(self._holders - {0}))

    def grow(self, end: int) -> Growth:
        """Return what changes if the ISO ends at an offset, a multiple of 2048."""
        moves = []
        position = end
        for start, length in sorted(self._behind.items()):
            moves.append(Move(start, length, position))
            position += length + -length % ALIGNMENT
        gpt_bytes = BLOCK + len(self._gpt.entries) + -len(self._gpt.entries) % BLOCK if self._gpt else 0
        size = position + max(gpt_bytes, self._trailing)
        size += -size % 2048
        moved = {move.start: move.to for move in moves}
        patches = [(entry.at, data) for entry, data in self._grow_mbr(end, moved, size)]
        backup = b""
        if self._gpt:
            primary, backup = self._grow_gpt(end, moved, size)
            patches += primary
        return Growth(tuple(patches), tuple(moves), backup, size)

    def _grow_mbr(self, end: int, moved: dict[int, int], size: int) -> Iterator[tuple[_HybridEntry, bytes]]:
        for entry in self._mbr:
            start = entry.first * BLOCK
            if entry.kind == _PROTECTIVE and start >= size:
                raise FormatError(f"the protective partition begins at offset {start}, behind the ISO's end")
            if entry.kind == _PROTECTIVE:
                yield entry, entry.resized(entry.first, size // BLOCK - entry.first)
            elif start in self._holders:
                yield entry, entry.resized(entry.first, (end - start) // BLOCK)
            elif start in moved:
                yield entry, entry.resized(moved[start] // BLOCK, entry.sectors)

    def _grow_gpt(self, end: int, moved: dict[int, int], size: int) -> tuple[list[tuple[int, bytes]], bytes]:
        assert self._gpt  # noqa: S101 - the caller has one
        entries = bytearray(self._gpt.entries)
        for entry in self._gpt_entries:
            at = (entry.number - 1) * self._gpt.entry_size
            kind, guid, first, last, name = GPT_ENTRY.unpack_from(entries, at)
            start = first * BLOCK
            if start in self._holders:
                last = end // BLOCK - 1
            elif start in moved:
                first, last = moved[start] // BLOCK, moved[start] // BLOCK + last - first
            elif start in self._gaps:
                entries[at : at + self._gpt.entry_size] = bytes(self._gpt.entry_size)
                continue
            flags = entries[at + 48 : at + 56]
            entries[at : at + GPT_ENTRY.size] = GPT_ENTRY.pack(kind, guid, first, last, name)
            entries[at + 48 : at + 56] = flags
        table = bytes(entries)
        fields = list(GPT_HEADER.unpack(self._read_at(_GPT_AT, GPT_HEADER.size)))
        header_bytes, here, own_table = fields[2], size // BLOCK - 1, fields[10]
        sectors = (len(table) + BLOCK - 1) // BLOCK
        rest = self._read_at(_GPT_AT + GPT_HEADER.size, header_bytes - GPT_HEADER.size)
        fields[8] = here - sectors - 1
        fields[13] = zlib.crc32(table)
        primary = _seal(fields, rest, 1, here, own_table)
        backup = _seal(fields, rest, here, 1, here - sectors)
        return [(_GPT_AT, primary), (own_table * BLOCK, table)], table + bytes(
            sectors * BLOCK - len(table)
        ) + backup.ljust(BLOCK, b"\0")


def _seal(fields: list[int | bytes], rest: bytes, this: int, other: int, table: int) -> bytes:
    """Return a GPT header with its checksum."""
    fields = [*fields]
    fields[3], fields[5], fields[6], fields[10] = 0, this, other, table
    fields[3] = zlib.crc32(GPT_HEADER.pack(*fields) + rest)
    return GPT_HEADER.pack(*fields) + rest


def _parse_mbr(sector: bytes) -> Iterator[_HybridEntry]:
    for number in range(_ENTRIES):
        at = _TABLE_AT + number * _ENTRY_BYTES
        data = sector[at : at + _ENTRY_BYTES]
        _, _, kind, end, first, sectors = _ENTRY.unpack(data)
        if sectors:
            yield _HybridEntry(at, kind, first, sectors, end, data)


def _chs(sector: int, heads: int, sectors: int) -> bytes:
    cylinder, rest = divmod(sector, heads * sectors)
    if cylinder >= _MAX_CYLINDERS:
        return _BEYOND
    head, number = divmod(rest, sectors)
    return bytes([head, (number + 1) | (cylinder >> 8) << 6, cylinder & 0xFF])
