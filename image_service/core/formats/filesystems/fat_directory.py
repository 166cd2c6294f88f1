"""Directories of a FAT file system that are edited: names that it can store, and room for entries.

A name of 8 and 3 capitals is stored as it is, any other as a long name with a short name of its own, such as
``LOADER~1.CON``.
"""

from __future__ import annotations

import re
import struct
from itertools import count
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unprocessable
from image_service.core.formats.filesystems.fat import (
    DELETED,
    DIRECTORY,
    ENTRY_BYTES,
    LAST_PART,
    LONG_NAME,
    FatEntry,
    name_checksum,
    parse_directory,
)
from image_service.core.formats.filesystems.file_tree import fold_case

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_ENTRY = struct.Struct("<11sBxx4s2sH4sHI")  # created, accessed and modified are dates between the numbers
_UPPER_AT, _MODIFIED_AT, _LOWER_AT = 20, 22, 26
_NO_DATE = bytes(2)
_FIRST_DATE = struct.pack("<HH", 0, 1 << 5 | 1)  # midnight of 1980-01-01
_ARCHIVE = 0x20
_STEM, _EXTENSION = 8, 3  # characters of a short name
_SHORT_LETTERS = r"A-Z0-9!#$%&'()@^_`{}~-"
_SHORT = re.compile(rf"[{_SHORT_LETTERS}]{{1,{_STEM}}}(\.[{_SHORT_LETTERS}]{{1,{_EXTENSION}}})?")
_NOT_SHORT = re.compile(rf"[^{_SHORT_LETTERS}]")
_WRONG = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|\ud800-\udfff]|[. ]\Z')
_MAX_UNITS = 255  # of UTF-16 in a name
_PART_BYTES = 26  # of a long name in an entry


def check_name(name: str) -> None:
    """Raise Unprocessable if FAT cannot store a name, which is not empty."""
    wrong = _WRONG.search(name)
    if wrong:
        end = " at its end" if wrong.end() == len(name) else ""
        raise Unprocessable(f"FAT cannot store the name {name!r}: it has {wrong[0]!r}{end}")
    units = len(name.encode("utf-16-le")) // 2
    if units > _MAX_UNITS:
        raise Unprocessable(
            f"FAT cannot store the name {name!r}: it has {units} UTF-16 units of {_MAX_UNITS}"
        )


@attrs.define
class FatDirectory:
    """A directory that is edited.

    Args:
        path: for messages.
        clusters: none for the fixed root.
        listing: the entries as they become.
        modified: time and date, which new entries take.
        old_clusters: how many of the clusters it has had before.
    """

    path: str
    clusters: list[int]
    listing: bytearray
    modified: bytes
    old_clusters: int
    entries: dict[str, FatEntry] = attrs.field(init=False)  # by name in capitals
    _aliases: dict[str, str] = attrs.field(init=False)  # names by short name
    _end: int = attrs.field(init=False)  # of the entries
    _numbers: dict[str, int] = attrs.field(init=False, factory=dict)  # the next one in a short name
    _searched: dict[int, int] = attrs.field(init=False, factory=dict)  # where so many bytes may be free

    def __attrs_post_init__(self) -> None:
        files = [entry for entry in parse_directory(bytes(self.listing)) if not entry.is_label]
        self.entries = {fold_case(entry.name): entry for entry in files if entry.name not in {".", ".."}}
        self._aliases = {entry.alias: entry.name for entry in files}
        starts = range(0, len(self.listing), ENTRY_BYTES)
        self._end = next((at for at in starts if not self.listing[at]), len(self.listing))

    def date_of(self, entry: FatEntry | None) -> bytes:
        """Return when an entry was modified: time and date; 1980-01-01 if it does not say so."""
        at = entry.position + _MODIFIED_AT if entry else 0
        found = bytes(self.listing[at : at + 4]) if entry else _NO_DATE
        return _FIRST_DATE if found.endswith(_NO_DATE) else found

    def make_entry(self, name: str, cluster: int, size: int | None, pending: AbstractSet[str]) -> FatEntry:
        """Return an entry for a new name, whose position is not known yet.

        Args:
            name: the new one.
            cluster: the first one, or 0.
            size: None: it is a directory.
            pending: names in capitals that will be added to this directory.

        Raises:
            Unprocessable: another file has that short name.
        """
        other = self._aliases.get(fold_case(name))
        if other is not None:
            raise Unprocessable(f"{self.path}{name} cannot be added: it is the short name of {other!r}")
        stem, _, extension = self._make_alias(fold_case(name), pending).partition(".")
        short = f"{stem:{_STEM}}{extension:{_EXTENSION}}".encode()
        attributes = DIRECTORY if size is None else _ARCHIVE
        return FatEntry(name, short, attributes, cluster, size or 0, 0)

    def find_room(self, wanted: int) -> int | None:
        """Return where so many bytes are free; None if there is no such place."""
        start = at = self._searched.get(wanted, 0)
        while at < len(self.listing) and at - start < wanted:
            if not self._is_free(at):
                start = at + ENTRY_BYTES
            at += ENTRY_BYTES
        self._searched[wanted] = start
        return start if at - start >= wanted else None

    def find_free_end(self) -> int:
        """Return from where on all is free."""
        at = len(self.listing)
        while at and self._is_free(at - ENTRY_BYTES):
            at -= ENTRY_BYTES
        return at

    def count_free(self) -> int:
        """Return how many entries are free."""
        return sum(map(self._is_free, range(0, len(self.listing), ENTRY_BYTES)))

    def add(self, position: int, entry: FatEntry, data: bytes) -> None:
        """Write a new entry, packed in `data`, to a position with room for it."""
        stop = position + len(data)
        self.listing[position:stop] = data
        if self._end < stop < len(self.listing):
            self.listing[stop] = 0  # what comes after the end is not read now, and must not be
        self._end = max(self._end, stop)
        self.entries[fold_case(entry.name)] = attrs.evolve(entry, position=stop - ENTRY_BYTES)
        self._aliases[entry.alias] = entry.name

    def change(self, entry: FatEntry, cluster: int, size: int) -> None:
        """Give an entry another content."""
        struct.pack_into("<H", self.listing, entry.position + _UPPER_AT, cluster >> 16)
        struct.pack_into("<HI", self.listing, entry.position + _LOWER_AT, cluster & 0xFFFF, size)

    def _is_free(self, position: int) -> bool:
        return position >= self._end or self.listing[position] == DELETED

    def _make_alias(self, capitals: str, pending: AbstractSet[str]) -> str:
        """Return the short name of a new name, which no other is called now or later."""
        if _SHORT.fullmatch(capitals):
            return capitals
        stem, _, extension = capitals.strip(". ").rpartition(".")
        if not stem:
            stem, extension = extension, ""
        stem = _NOT_SHORT.sub("_", stem.replace(" ", "").replace(".", ""))
        extension = _NOT_SHORT.sub("_", extension.replace(" ", ""))[:_EXTENSION]
        begin = f"{stem[: _STEM - 2]}.{extension}"
        for number in count(self._numbers.get(begin, 1)):
            tail = f"~{number}"
            alias = f"{stem[: _STEM - len(tail)]}{tail}.{extension}".removesuffix(".")
            if not (alias in self._aliases or alias in self.entries or alias in pending):
                self._numbers[begin] = number + 1
                return alias
        raise AssertionError("numbers have no end")


def pack_entry(entry: FatEntry, modified: bytes) -> bytes:
    """Return the bytes of an entry, its long name before it if it needs one."""
    last = _ENTRY.pack(
        entry.short,
        entry.attributes,
        modified,
        modified[2:],
        entry.cluster >> 16,
        modified,
        entry.cluster & 0xFFFF,
        entry.size,
    )
    if entry.name == entry.alias:
        return last
    text = entry.name.encode("utf-16-le")
    if len(text) % _PART_BYTES:
        text += bytes(2)
    text += b"\xff" * (-len(text) % _PART_BYTES)
    checksum = name_checksum(entry.short)
    number = len(text) // _PART_BYTES
    parts = []
    for start in range(len(text) - _PART_BYTES, -1, -_PART_BYTES):
        part = text[start : start + _PART_BYTES]
        order = start // _PART_BYTES + 1
        head = bytes([order | LAST_PART * (order == number)]) + part[:10] + bytes([LONG_NAME, 0, checksum])
        parts.append(head + part[10:22] + bytes(2) + part[22:])
    return b"".join(parts) + last
