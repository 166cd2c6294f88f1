"""Directory records of ISO 9660 (ECMA-119 section 9.1), as they are stored.

    +0      1   length of the record
    +1      1   sectors of extended attributes
    +2      8   first sector, both byte orders
    +10     8   length in bytes, both byte orders
    +25     1   flags: 0x02 directory, 0x80 more sections of this file follow
    +26     2   interleaving
    +32     1   length of the name, which follows: ``NAME.EXT;1``; behind it are entries of Rock Ridge

Sectors are 2048 bytes. No record of a directory crosses the end of a sector; a zero byte skips to the next
one. The little-endian halves are read, as coreos-installer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.iso9660.rock_ridge import both_orders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECTOR = 2048
DIRECTORY, MULTI_EXTENT = 0x02, 0x80
SELF, PARENT = b"\0", b"\1"
_HEAD_BYTES = 33
MAX_RECORD = 255
_FLAGS_AT = 25


@attrs.frozen
class Record:
    """A directory record; `data` is all of it."""

    data: bytes

    @property
    def block(self) -> int:
        """The first block of its file."""
        return int.from_bytes(self.data[2:6], "little")

    @property
    def length(self) -> int:
        """Bytes of its file."""
        return int.from_bytes(self.data[10:14], "little")

    @property
    def flags(self) -> int:
        """`DIRECTORY` and others."""
        return self.data[_FLAGS_AT]

    @property
    def is_directory(self) -> bool:
        """Whether its file is a directory."""
        return bool(self.flags & DIRECTORY)

    @property
    def is_plain(self) -> bool:
        """Whether its extent is its content: it has no extended attributes and is not interleaved."""
        return not (self.data[1] or self.data[26] or self.data[27])

    @property
    def identifier(self) -> bytes:
        """Its name, as it is stored; `SELF` and `PARENT` have no other."""
        return self.data[_HEAD_BYTES : _HEAD_BYTES + self.data[32]]

    @property
    def _system_use_at(self) -> int:
        used = _HEAD_BYTES + self.data[32]
        return used + used % 2

    @property
    def system_use(self) -> bytes:
        """The bytes behind the name."""
        return self.data[self._system_use_at :]

    def with_system_use(self, area: bytes) -> Record:
        """Return the record with other bytes of the same length behind the name."""
        return Record(self.data[: self._system_use_at] + area)

    def moved(self, block: int, length: int) -> Record:
        """Return the record of the same file in another place."""
        data = self.data
        return Record(data[:2] + both_orders(block) + both_orders(length) + data[18:])

    def as_only_section(self) -> Record:
        """Return the record of a file that has no further sections."""
        data = self.data
        return Record(data[:_FLAGS_AT] + bytes([self.flags & ~MULTI_EXTENT]) + data[_FLAGS_AT + 1 :])


def make_record(identifier: bytes, like: Record, system_use: bytes, *, is_directory: bool) -> Record:
    """Return the record of a new file without a place; date and volume are those of another.

    Raises:
        FormatError: it is too long.
    """
    flags = DIRECTORY if is_directory else 0
    head = (
        bytes(18)
        + like.data[18:_FLAGS_AT]
        + bytes([flags, 0, 0])
        + like.data[28:32]
        + bytes([len(identifier)])
    )
    padding = bytes(1 - len(identifier) % 2)
    data = head + identifier + padding + system_use
    data += bytes(len(data) % 2)
    if len(data) > MAX_RECORD:
        raise FormatError(f"the directory record of {identifier!r} needs {len(data)} of {MAX_RECORD} bytes")
    return Record(bytes([len(data)]) + data[1:])


def parse_records(content: bytes, offset: int) -> Iterator[Record]:
    """Yield the records of a directory's content, which lies at an offset of the image.

    Raises:
        FormatError: a record leaves its sector.
    """
    position = 0
    while position < len(content):
        length = content[position]
        end = min(position - position % SECTOR + SECTOR, len(content))
        if not length:
            position = end
            continue
        data = content[position : min(position + length, end)]
        if len(data) < length or length <= _HEAD_BYTES or length < _HEAD_BYTES + data[32]:
            raise FormatError(f"the ISO has a damaged directory record at offset {offset + position}")
        yield Record(data)
        position += length


def render_records(records: Iterable[Record]) -> bytes:
    """Return the content of a directory: no record crosses the end of a sector."""
    content = bytearray()
    for record in records:
        room = -len(content) % SECTOR
        if len(record.data) > room:
            content += bytes(room)
        content += record.data
    return bytes(content) + bytes(-len(content) % SECTOR)
