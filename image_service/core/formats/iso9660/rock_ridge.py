"""Rock Ridge (IEEE P1282) in the system use area of directory records (SUSP, IEEE P1281).

An entry has a signature (2), its length (1), a version (1) and data:

    SP      in the ``.`` record of the root: BE EF (2), bytes to skip in every other area: 6 (1)
    CE      more entries follow elsewhere: block (8), offset in it (8), length (8), each in both byte orders
    NM      name: flags (1), of which 1 says that the next NM continues it; text
    PX      mode, links, user, group and in newer versions a serial number, 8 bytes each, in both byte orders
    TF      dates: flags (1), 7 bytes for each, or 17
    SL, CL  a symbolic link; a directory that lies elsewhere, because it would be too deep here
    ST      the last entry
"""

from __future__ import annotations

import stat
import struct
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEAD_BYTES = 4
_CONTINUED_NAME = 1
_NAME_AT = 5
_CE = struct.Struct("<4xI4xI4xI4x")
_MODE_AT, _LINKS_AT, _SERIAL_AT = 4, 12, 36
_SERIAL_END = _SERIAL_AT + 8
_MAX_CONTINUATIONS = 16
NAME_ENTRY = b"NM"
_OF_ONE_FILE = {NAME_ENTRY, b"SP", b"CE", b"ER", b"SL", b"CL", b"PL", b"RE", b"ZF", b"ST", b"RR", b"ES"}
"""Entries that do not hold for another file in the same directory."""


def both_orders(number: int) -> bytes:
    """Return a number of 32 bits in both byte orders (ECMA-119 section 7.3.3)."""
    return struct.pack("<I", number) + struct.pack(">I", number)


def find_skip(area: bytes) -> int | None:
    """Return how many bytes precede the entries in all areas but this, the root's; None: not Rock Ridge."""
    return area[6] if area[:2] == b"SP" and area[4:6] == b"\xbe\xef" and len(area) > _NAME_AT + 1 else None


def read_entries(area: bytes, read_block: Callable[[int, int, int], bytes]) -> Iterator[bytes]:
    """Yield the entries of an area, those that it continues with among them.

    Args:
        read_block: returns bytes by block, offset and length.

    Raises:
        FormatError: an entry leaves the area, or the areas go on and on.
    """
    for _ in range(_MAX_CONTINUATIONS):
        following = None
        position = 0
        while position + _HEAD_BYTES <= len(area) and area[position]:
            length = area[position + 2]
            entry = area[position : position + length]
            if not _HEAD_BYTES <= length == len(entry):
                raise FormatError(f"a Rock Ridge entry of {length} bytes leaves its directory record")
            if entry.startswith(b"ST"):
                break
            if entry.startswith(b"CE") and length == _CE.size:
                following = _CE.unpack(entry)
            yield entry
            position += length
        if following is None:
            return
        area = read_block(*following)
    raise FormatError(f"Rock Ridge entries continue more than {_MAX_CONTINUATIONS} times")


def find_name(entries: list[bytes]) -> bytes | None:
    """Return the name; None if there is none."""
    parts = [entry for entry in entries if entry.startswith(NAME_ENTRY) and len(entry) >= _NAME_AT]
    if not parts or not parts[0][4] <= _CONTINUED_NAME:
        return None
    return b"".join(part[_NAME_AT:] for part in parts)


def entries_of_new_file(siblings: list[bytes], name: bytes, serial: int, *, is_directory: bool) -> bytes:
    """Return the entries of a new file.

    Args:
        name: b"": they are those of the ``.`` and ``..`` records of a directory.
        siblings: the entries of the ``.`` record of its directory, whose owner and dates it has.
        serial: differs from that of every other file.
    """
    kind, links = (stat.S_IFDIR | 0o555, 2) if is_directory else (stat.S_IFREG | 0o444, 1)
    entries = [entry for entry in siblings if entry[:2] not in _OF_ONE_FILE]
    for index, entry in enumerate(entries):
        if entry.startswith(b"PX") and len(entry) >= _SERIAL_AT:
            entries[index] = _with_number(_with_number(entry, _MODE_AT, kind), _LINKS_AT, links)
            if len(entry) >= _SERIAL_END:
                entries[index] = _with_number(entries[index], _SERIAL_AT, serial)
    if name:
        entries.append(NAME_ENTRY + bytes([_NAME_AT + len(name), 1, 0]) + name)
    return b"".join(entries)


def add_links(area: bytes, more: int) -> bytes:
    """Return an area whose directory has more links, as it gets subdirectories."""
    at = 0
    while at + _HEAD_BYTES <= len(area) and area[at + 2] >= _HEAD_BYTES:
        if area[at : at + 2] == b"PX" and at + _LINKS_AT + 8 <= len(area):
            links = int.from_bytes(area[at + _LINKS_AT : at + _LINKS_AT + 4], "little")
            return _with_number(area, at + _LINKS_AT, (links + more) & 0xFFFFFFFF)
        at += area[at + 2]
    return area


def _with_number(data: bytes, at: int, number: int) -> bytes:
    return data[:at] + both_orders(number) + data[at + 8 :]
