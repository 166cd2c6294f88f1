"""The volume descriptors of an ISO, and of each partition that has its own; iso9660.py has their layout.

A volume has a tree of directories for each descriptor: the primary one, with Rock Ridge names or not; Joliet
ones, whose escape sequence says UCS-2; those of ISO 9660:1999, which are of version 2. A partition with
descriptors of its own (xorriso's ``-partition_offset``) has trees whose blocks count from its start.

    +80     8   blocks of the volume, in both byte orders
    +88    32   escape sequence of a supplementary descriptor
    +132    8   bytes of a path table, in both byte orders
    +140    4   block of the little-endian path table, +144 of its copy; 0: no copy
    +148    4   of the big-endian one, big-endian, +152 of its copy
    +156   34   the directory record of the root
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, FormatUnread
from image_service.core.formats.iso9660.records import SECTOR, Record
from image_service.core.formats.iso9660.rock_ridge import both_orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

FIRST_DESCRIPTOR = 16 * SECTOR
_MAX_DESCRIPTORS = 32
_IDENTIFIER, _UDF = b"CD001", b"BEA01"
_PRIMARY, _SUPPLEMENTARY, _END = 1, 2, 255
_ENHANCED_VERSION = 2
_JOLIET = (b"%/@", b"%/C", b"%/E")
_ROOT_AT, _ROOT_END = 156, 190
_TABLE_BYTES_AT = 132


class Names(enum.Enum):
    """How a tree spells names; the values are those in messages."""

    ISO = "ISO 9660"
    JOLIET = "Joliet"
    ENHANCED = "ISO 9660:1999"


@attrs.frozen
class Descriptor:
    """A volume descriptor.

    Args:
        at: its offset in the image.
        start: the offset in the image from which its blocks count.
        data: its sector.
    """

    at: int
    start: int
    names: Names
    data: bytes = attrs.field(repr=False)

    @property
    def root(self) -> Record:
        """The directory record of the root."""
        return Record(self.data[_ROOT_AT:_ROOT_END])

    @property
    def blocks(self) -> int:
        """The size of the volume."""
        return int.from_bytes(self.data[80:84], "little")

    @property
    def table_bytes(self) -> int:
        """The size of each path table."""
        return int.from_bytes(self.data[_TABLE_BYTES_AT : _TABLE_BYTES_AT + 4], "little")

    @property
    def tables(self) -> tuple[int, int, int, int]:
        """The blocks of the path tables: little-endian, its copy, big-endian, its copy."""
        one, other = struct.unpack_from("<II", self.data, 140)
        return (one, other, *struct.unpack_from(">II", self.data, 148))

    def with_blocks(self, blocks: int) -> Descriptor:
        """Return the descriptor of a volume of another size."""
        return self._with(80, both_orders(blocks))

    def with_root(self, root: Record) -> Descriptor:
        """Return the descriptor with the root in another place."""
        return self._with(_ROOT_AT, root.data[: _ROOT_END - _ROOT_AT])

    def with_tables(self, size: int, blocks: tuple[int, int, int, int]) -> Descriptor:
        """Return the descriptor with path tables of another size, or elsewhere: as in `tables`."""
        data = both_orders(size) + struct.pack("<II", *blocks[:2]) + struct.pack(">II", *blocks[2:])
        return self._with(_TABLE_BYTES_AT, data)

    def _with(self, at: int, data: bytes) -> Descriptor:
        return attrs.evolve(self, data=self.data[:at] + data + self.data[at + len(data) :])


def holds_volume(read_at: ReadAt, start: int) -> bool:
    """Return True if volume descriptors begin 16 sectors after an offset."""
    return read_at(start + FIRST_DESCRIPTOR + 1, len(_IDENTIFIER)) == _IDENTIFIER


def read_descriptors(read_at: ReadAt, start: int) -> Iterator[Descriptor]:
    """Yield the descriptors of the volume that begins at an offset.

    Raises:
        FormatError: there are none, or they are damaged.
        FormatUnread: the volume has UDF too, or blocks of another size.
    """
    for number in range(_MAX_DESCRIPTORS):
        at = start + FIRST_DESCRIPTOR + number * SECTOR
        data = read_at(at, SECTOR)
        kind = data[0] if len(data) == SECTOR and data[1:6] == _IDENTIFIER else None
        if kind is None:
            raise FormatError(f"not an ISO 9660 image: no volume descriptor at offset {at}")
        if kind == _END:
            if any(read_at(at + more * SECTOR + 1, len(_UDF)) == _UDF for more in (1, 2)):
                raise FormatUnread(
                    "the ISO has a UDF file system too, as media of Windows do, which would show the files"
                    " unchanged; put them on a second medium"
                )
            return
        if kind in {_PRIMARY, _SUPPLEMENTARY}:
            if int.from_bytes(data[128:130], "little") != SECTOR:
                raise FormatUnread(f"the ISO's logical blocks are not of {SECTOR} bytes")
            yield Descriptor(at, start, _names(kind, data), data)
    raise FormatError(f"the ISO has more than {_MAX_DESCRIPTORS} volume descriptors")


def _names(kind: int, data: bytes) -> Names:
    if kind == _PRIMARY:
        return Names.ISO
    if data[88:120].startswith(_JOLIET):
        return Names.JOLIET
    return Names.ENHANCED if data[6] == _ENHANCED_VERSION else Names.ISO
