"""The records of NTFS: files and directories, their attributes, and the entries of directories.

record        of the MFT: FILE; sequence numbers: 4 (2), 6 (2); first attribute: 20 (2); flags: 22 (2; 1
              in use, 2 directory). The last two bytes of each 512 are the first of the sequence numbers,
              in place of those that are stored after it
attribute     type (4), length (4), 0 if it is resident (1), characters of its name (1), their offset (2),
              flags (2)
  resident    length of the value: 16 (4), its offset: 20 (2)
  others      first cluster of the value that these runs are about: 16 (8), offset of the runs: 32 (2),
              bytes of the value: 48 (8)
runs          bytes of the number and of the offset (4 bits each), number of clusters, offset from the run
              before; no offset: zeros
directory     index of type 0x90 with entries, and of type 0xA0 with blocks (INDX, otherwise like records)
              of entries; a bitmap (0xB0) says which blocks are in use
entry         record (6 of 8), length (2), flags: 12 (2; 2: the last); characters of the name: 80 (1),
              form: 81 (1; 2: of DOS), name: 82
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTOR = 512
_ATTRIBUTE = struct.Struct("<IIBBHH")
_END = 0xFFFFFFFF
_VALUE_HEADER, _RUNS_HEADER = 24, 64
_LIST_ENTRY = struct.Struct("<IHBBQQ")
_ENTRY = struct.Struct("<QHHH")
_LAST_ENTRY = 2
_DOS_NAME = 2
_NAME = 82
_NUMBER = (1 << 48) - 1


@attrs.frozen
class NtfsAttribute:
    """An attribute as stored."""

    type: int
    flags: int
    is_resident: bool
    stored: bytes = attrs.field(repr=False)

    @property
    def first_cluster(self) -> int:
        """Return the first cluster of the value that its runs are about."""
        return 0 if self.is_resident else int.from_bytes(self.stored[16:24], "little")

    def resident_value(self) -> bytes:
        """Return the value of a resident attribute."""
        length, offset = struct.unpack_from("<IH", self.stored, 16)
        return self.stored[offset : offset + length]


@attrs.frozen
class NtfsRecord:
    """A record of the MFT with all its attributes."""

    number: int
    flags: int
    attributes: tuple[NtfsAttribute, ...]


def restore_block(stored: bytes, magic: bytes, name: str) -> bytes:
    """Return a block with the bytes that its sequence numbers have replaced."""
    start, count = struct.unpack_from("<HH", stored, 4)
    words = stored[start : start + 2 * count]
    if not stored.startswith(magic) or count != len(stored) // _SECTOR + 1 or len(words) != 2 * count:
        raise FormatError(f"the NTFS volume is damaged: {name} is not what it must be")
    block = bytearray(stored)
    for index in range(1, count):
        end = index * _SECTOR
        if block[end - 2 : end] != words[:2]:
            raise FormatError(f"the NTFS volume is damaged: {name} was not written as a whole")
        block[end - 2 : end] = words[2 * index : 2 * index + 2]
    return bytes(block)


def parse_attributes(block: bytes, position: int, number: int) -> Iterator[NtfsAttribute]:
    """Yield the attributes without a name, and those of a directory's index."""
    while position + _ATTRIBUTE.size <= len(block):
        kind, length, is_elsewhere, name_length, name_offset, flags = _ATTRIBUTE.unpack_from(block, position)
        if kind == _END:
            return
        stored = block[position : position + length]
        if len(stored) != length or length < (_RUNS_HEADER if is_elsewhere else _VALUE_HEADER):
            break
        name = stored[name_offset : name_offset + 2 * name_length].decode("utf-16-le", "replace")
        if name in {"", "$I30"}:
            yield NtfsAttribute(kind, flags, not is_elsewhere, stored)
        position += length
    raise FormatError(f"the NTFS volume is damaged: the attributes of record {number} have no end")


def parse_runs(stored: bytes) -> Iterator[tuple[int | None, int]]:
    """Yield the runs of an attribute: the first cluster of the volume, None for zeros, and their number."""
    position, first = int.from_bytes(stored[32:34], "little"), 0
    while position < len(stored) and stored[position]:
        length_bytes, offset_bytes = stored[position] & 15, stored[position] >> 4
        start = position + 1 + length_bytes
        count = int.from_bytes(stored[position + 1 : start], "little")
        first += int.from_bytes(stored[start : start + offset_bytes], "little", signed=True)
        yield first if offset_bytes else None, count
        position = start + offset_bytes


def parse_list(value: bytes) -> Iterator[int]:
    """Yield the numbers of the records that a list of attributes names."""
    position = 0
    while position + _LIST_ENTRY.size <= len(value):
        _, length, _, _, _, record = _LIST_ENTRY.unpack_from(value, position)
        if length < _LIST_ENTRY.size:
            raise FormatError(f"the NTFS volume is damaged: a list has an entry of {length} bytes")
        yield record & _NUMBER
        position += length


def parse_index(block: bytes, header: int) -> Iterator[tuple[str, int]]:
    """Yield the names of an index's entries, less those of DOS, with the numbers of their records."""
    offset, total = struct.unpack("<II", block[header : header + 8].ljust(8, b"\0"))
    position, stop = header + offset, header + total
    while position + _ENTRY.size <= min(stop, len(block)):
        record, length, _, flags = _ENTRY.unpack_from(block, position)
        if flags & _LAST_ENTRY:
            return
        entry = block[position : position + length]
        if len(entry) != length or length < _NAME or length < _NAME + 2 * entry[_NAME - 2]:
            break
        if entry[_NAME - 1] != _DOS_NAME:
            name = entry[_NAME : _NAME + 2 * entry[_NAME - 2]]
            yield name.decode("utf-16-le", "replace"), record & _NUMBER
        position += length
    raise FormatError("the NTFS volume is damaged: an index has no end")
