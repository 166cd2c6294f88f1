"""Path tables of ISO 9660 (ECMA-119 section 9.4): all directories of a tree, in one run of bytes.

An entry has the length of its name (1), sectors of extended attributes (1), the first block (4), the number
of the parent from 1 on (2), the name, and a zero if its length is odd. Entries are in the order of levels,
then of parents, then of names. There are tables of both byte orders, L and M.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from itertools import chain, repeat
from operator import le

import attrs

from image_service.core.errors import FormatError

MAX_DIRECTORIES = 65535
MAX_TABLE_BYTES = 8 << 20
ROOT = 1
"""The number of the root, which is its own parent."""
_HEAD_BYTES = 8
_FORMATS = tuple(f"BBIH{length}s{'x' * (length % 2)}" for length in range(256))
"""Of an entry, by the length of its name; all entries together are packed at once, which is much faster."""


@attrs.define(eq=False)
class PathTable:
    """The directories of a tree, in the order of their numbers from 1 on.

    Args:
        parents: their numbers; that of the root is `ROOT`.
    """

    names: list[bytes] = attrs.field(repr=False)
    blocks: list[int] = attrs.field(repr=False)
    parents: list[int] = attrs.field(repr=False)

    @classmethod
    def parse(cls, table: bytes) -> PathTable:
        """Return the directories of a table in little-endian order.

        Raises:
            FormatError: it is damaged.
        """
        formats: list[str] = []
        position = 0
        while position + _HEAD_BYTES <= len(table):
            length = table[position]
            if not length:
                raise _damaged(len(formats))
            formats.append(_FORMATS[length])
            position += _HEAD_BYTES + length + (length & 1)
        if position > len(table):
            raise _damaged(len(formats) - 1)
        if len(formats) > MAX_DIRECTORIES:
            raise FormatError(f"the ISO's path table has more than {MAX_DIRECTORIES} directories")
        if not formats or position != len(table):
            raise FormatError("the ISO's path table is damaged: it does not end with an entry")
        values = struct.Struct("<" + "".join(formats)).unpack(table)
        found = cls(list(values[4::5]), list(values[2::5]), list(values[3::5]))
        precede = list(map(le, found.parents, chain((ROOT,), range(ROOT, len(formats)))))
        if not all(precede) or min(found.parents) < ROOT:
            raise _damaged(precede.index(False) if False in precede else found.parents.index(0))
        return found if found.parents == sorted(found.parents) else found._sorted()

    def _sorted(self) -> PathTable:
        """Return it in the order of levels and parents, in which writers other than known ones may not be."""
        children: dict[int, list[int]] = {}
        for number, parent in enumerate(self.parents[1:], ROOT + 1):
            children.setdefault(parent, []).append(number)
        order = [ROOT]
        for number in order:
            order += children.get(number, ())
        numbers = {old: new for new, old in enumerate(order, 1)}
        return PathTable(
            [self.names[number - 1] for number in order],
            [self.blocks[number - 1] for number in order],
            [numbers[self.parents[number - 1]] for number in order],
        )

    def find(self, parent: int, name: bytes) -> int:
        """Return the number of a directory.

        Raises:
            FormatError: there is none with this name.
        """
        start, stop = self._children(parent)
        try:
            return self.names.index(name, start, stop) + 1
        except ValueError:
            raise FormatError(f"the ISO's path table lacks a directory: {name!r}") from None

    def add(self, parent: int, name: bytes, block: int) -> None:
        """Add a directory in the order of names; those behind it get other numbers."""
        at = bisect_left(self.names, name, *self._children(parent))
        self.names.insert(at, name)
        self.blocks.insert(at, block)
        self.parents.insert(at, parent)
        behind = bisect_left(self.parents, at + 1, 1)
        self.parents[behind:] = [number + 1 for number in self.parents[behind:]]

    def _children(self, parent: int) -> tuple[int, int]:
        """Return where the directories of a parent begin and end; the root is its own parent."""
        return bisect_left(self.parents, parent, 1), bisect_right(self.parents, parent, 1)

    def render(self) -> tuple[bytes, bytes]:
        """Return the tables in little-endian and in big-endian order.

        Raises:
            FormatError: there are too many directories.
        """
        if len(self.names) > MAX_DIRECTORIES:
            raise FormatError(f"the ISO has more than {MAX_DIRECTORIES} directories")
        lengths = list(map(len, self.names))
        formats = "".join(map(_FORMATS.__getitem__, lengths))
        rows = zip(lengths, repeat(0), self.blocks, self.parents, self.names, strict=False)
        values = tuple(chain.from_iterable(rows))
        return struct.Struct("<" + formats).pack(*values), struct.Struct(">" + formats).pack(*values)


def _damaged(index: int) -> FormatError:
    return FormatError(f"the ISO's path table is damaged at entry {index + 1}")
