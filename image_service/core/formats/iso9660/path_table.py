"""Path tables of ISO 9660 (ECMA-119 section 9.4): all directories of a tree, in one run of bytes.

An entry has the length of its name (1), sectors of extended attributes (1), the first block (4), the number
of the parent from 1 on (2), the name, and a zero if its length is odd. Entries are in the order of levels,
then of parents, then of names. There are tables of both byte orders, L and M.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADS = {"little": struct.Struct("<BBIH"), "big": struct.Struct(">BBIH")}
MAX_DIRECTORIES = 65535
MAX_TABLE_BYTES = 8 << 20


@attrs.define(eq=False)
class Listed:
    """A directory in the table.

    Args:
        parent: the root is its own.
    """

    name: bytes
    block: int
    parent: Listed | None
    children: list[Listed] = attrs.field(factory=list, repr=False)


def parse_path_table(table: bytes) -> list[Listed]:
    """Return the directories of a table in little-endian order, the root first.

    Raises:
        FormatError: it is damaged.
    """
    found: list[Listed] = []
    position, head = 0, _HEADS["little"]
    while position + head.size <= len(table):
        length, _, block, number = head.unpack_from(table, position)
        position += head.size
        name = table[position : position + length]
        position += length + length % 2
        if not length or len(name) < length or not 1 <= number <= max(1, len(found)):
            raise FormatError(f"the ISO's path table is damaged at entry {len(found) + 1}")
        parent = found[number - 1] if found else None
        directory = Listed(name, block, parent)
        if parent is not None:
            parent.children.append(directory)
        found.append(directory)
        if len(found) > MAX_DIRECTORIES:
            raise FormatError(f"the ISO's path table has more than {MAX_DIRECTORIES} directories")
    if not found or position != len(table):
        raise FormatError("the ISO's path table is damaged: it does not end with an entry")
    return found


def add_directory(parent: Listed, name: bytes, block: int) -> Listed:
    """Add a directory in the order of names."""
    directory = Listed(name, block, parent)
    at = bisect_left(parent.children, name, key=lambda child: child.name)
    parent.children.insert(at, directory)
    return directory


def render_path_tables(root: Listed) -> tuple[bytes, bytes]:
    """Return the tables in little-endian and in big-endian order.

    Raises:
        FormatError: there are too many directories.
    """
    level: Sequence[Listed] = [root]
    numbers: dict[int, int] = {}
    tables = bytearray(), bytearray()
    while level:
        for directory in level:
            numbers[id(directory)] = len(numbers) + 1
            if len(numbers) > MAX_DIRECTORIES:
                raise FormatError(f"the ISO has more than {MAX_DIRECTORIES} directories")
            number = 1 if directory.parent is None else numbers[id(directory.parent)]
            name = directory.name
            for table, head in zip(tables, _HEADS.values(), strict=True):
                table.extend(head.pack(len(name), 0, directory.block, number) + name + bytes(len(name) % 2))
        level = [child for directory in level for child in directory.children]
    return bytes(tables[0]), bytes(tables[1])
