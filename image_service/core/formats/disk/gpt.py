"""GUID partition tables (UEFI 2.10 section 5.3): one copy, the primary or the backup.

GPT header    in sector 1, and again in the last sector; all numbers little-endian
  +0      8   EFI PART
  +12     4   bytes of the header: at least 92
  +16     4   CRC-32 of the header, in which this field is zero
  +24     8   sector of this header
  +32     8   sector of the other header
  +40     8   first sector that partitions may use
  +48     8   last sector that they may use
  +56    16   GUID of the disk
  +72     8   first sector of the entries
  +80     4   number of entries
  +84     4   bytes of an entry: 128 times a power of two
  +88     4   CRC-32 of the entries
entry         type (16; zeros: unused), GUID (16), first sector (8), last sector (8), flags (8), name in
              UTF-16 (72)
"""

from __future__ import annotations

import struct
import uuid
import zlib
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

GPT_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")
GPT_SIGNATURE = b"EFI PART"
GPT_ENTRY = struct.Struct("<16s16sQQ8x72s")
_MAX_ENTRIES = 1024 * 1024  # bytes; nearly all disks have 16 KiB


@attrs.frozen
class GptEntry:
    """A partition; sectors count from the start of the disk, `last` included; GUIDs are in lower case."""

    number: int
    type: str
    uuid: str
    first: int
    last: int
    name: str


@attrs.frozen
class GptCopy:
    """A valid header and its entries.

    Args:
        sector_size: bytes.
        other: sector of the other header.
        disk: GUID of the disk, in lower case.
        entries: as stored, of `entry_size` bytes each.
    """

    sector_size: int
    other: int
    disk: str
    entries: bytes = attrs.field(repr=False)
    entry_size: int

    def parse_entries(self) -> Iterator[GptEntry]:
        """Yield the entries in use."""
        for position in range(0, len(self.entries), self.entry_size):
            kind, guid, first, last, name = GPT_ENTRY.unpack_from(self.entries, position)
            if any(kind):
                text = name.decode("utf-16-le", "replace").partition("\0")[0]
                number = position // self.entry_size + 1
                yield GptEntry(number, _guid(kind), _guid(guid), first, last, text)


def read_gpt_copy(read_at: ReadAt, size: int, sector_size: int, sector: int) -> GptCopy:
    """Read the header in a sector, and its entries; FormatError if a checksum or a field is wrong."""
    where = f"the GPT at offset {sector * sector_size}"
    block = read_at(sector * sector_size, sector_size) if sector > 0 else b""
    if len(block) < sector_size or not block.startswith(GPT_SIGNATURE):
        raise FormatError(f"{where} is missing")
    _, _, length, checksum, _, this, other, _, _, disk, start, count, entry_size, entries_checksum = (
        GPT_HEADER.unpack_from(block)
    )
    if (
        not GPT_HEADER.size <= length <= sector_size
        or zlib.crc32(block[:16] + bytes(4) + block[20:length]) != checksum
    ):
        raise FormatError(f"{where} is damaged: its checksum is wrong")
    if this != sector:
        raise FormatError(f"{where} is damaged: it belongs to sector {this}")
    total = count * entry_size
    if entry_size < GPT_ENTRY.size or entry_size % 8:
        raise FormatError(
            f"{where} has entries of {entry_size} bytes; multiples of 8 from {GPT_ENTRY.size} are supported"
        )
    if total > _MAX_ENTRIES:
        raise FormatError(
            f"{where} has {count} entries of {entry_size} bytes, more than {_MAX_ENTRIES} bytes"
        )
    if start * sector_size + total > size:
        raise FormatError(f"{where} is damaged: its entries, in sector {start}, are outside the disk")
    entries = read_at(start * sector_size, total)
    if zlib.crc32(entries) != entries_checksum:
        raise FormatError(f"{where} is damaged: the checksum of its entries is wrong")
    return GptCopy(sector_size, other, _guid(disk), entries, entry_size)


def _guid(data: bytes) -> str:
    return str(uuid.UUID(bytes_le=data))
