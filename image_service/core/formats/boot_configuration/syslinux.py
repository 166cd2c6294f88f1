"""SYSLINUX's configuration, of ISOLINUX and EXTLINUX too, edited in place.

    LABEL live                      an entry; keys are case-insensitive, and arguments have no quotes
      KERNEL /boot/vmlinuz          or LINUX; KERNEL also starts other programs, by their suffix
      APPEND initrd=a,b quiet --- splash
      INITRD a,b                    in place of initrd=

An APPEND before the first entry is for the entries that have none; ``APPEND -`` has none on purpose. TIMEOUT
counts tenths of a second. Names of files are relative to the directory of the main configuration.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.formats.boot_configuration.boot_edit import (
    Line,
    Loader,
    Splice,
    edit_arguments,
    line_end,
    may_be_linux,
    missing_initrds,
    read_lines,
    splice,
    split_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.core.formats.boot_configuration.boot_edit import BootEdit

SYSLINUX = Loader("SYSLINUX", re.compile(r'[^!-~]|"|^initrd='))

_INITRD = "initrd="
_NOT_LINUX = (".0", ".bin", ".bs", ".bss", ".c32", ".cbt", ".com", ".img")
_MENU = re.compile(rb"\S*menu\.c32", re.IGNORECASE)
_MAIN = ("isolinux.cfg", "syslinux.cfg", "extlinux.conf")
_MAX_TIMEOUT = 35996


def edit(content: bytes, edit: BootEdit, path: str) -> bytes:
    """Return an edited configuration."""
    lines = list(_read_lines(content))
    entries = list(_read_entries(lines))
    common = entries[0].get("append")
    splices = list(_edit_append(content, common, edit, path)) if common else []
    for entry in entries[1:]:
        if "kernel" in entry and _boots_linux(content, entry["kernel"]):
            splices += _edit_entry(content, entry, common, edit, path)
    if edit.timeout_seconds is not None:
        splices += _limit_waiting(content, lines, edit.timeout_seconds, path)
    return splice(content, splices)


def find_included(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the files that a configuration includes or hands over to, with a new working directory or ""."""
    lines = list(_read_lines(content))
    for line in lines:
        words = [word.value for word in split_words(content, line.start, line.end)]
        if line.key == "menu" and words[:1] and words[0].lower() == "include":
            words = words[1:2]
        elif line.key not in {"include", "config"}:
            continue
        if words:
            yield words[0], words[1] if line.key == "config" and len(words) > 1 else ""
    for entry in _read_entries(lines):
        if "append" in entry and "kernel" in entry and _MENU.fullmatch(_value(content, entry["kernel"])):
            yield _value(content, entry["append"]).decode(errors="surrogateescape"), ""


def _read_lines(content: bytes) -> Iterator[Line]:
    """Yield the lines outside of texts of help."""
    is_help = False
    for line in read_lines(content):
        if line.key in {"text", "endtext"}:
            is_help = line.key == "text"
        elif not is_help:
            yield line


def _read_entries(lines: list[Line]) -> Iterator[Mapping[str, Line]]:
    """Yield the lines by their keys: first those that are for all entries, then those of each entry."""
    entry: dict[str, Line] = {}
    for line in lines:
        if line.key == "label":
            yield entry
            entry = {}
        entry["kernel" if line.key == "linux" else line.key] = line
    yield entry


def _value(content: bytes, line: Line) -> bytes:
    return content[line.start : line.end]


def _boots_linux(content: bytes, kernel: Line) -> bool:
    path = _value(content, kernel).decode(errors="surrogateescape")
    return may_be_linux(path) and (kernel.key == "linux" or not path.lower().endswith(_NOT_LINUX))


def _edit_entry(
    content: bytes, entry: Mapping[str, Line], common: Line | None, edit: BootEdit, path: str
) -> Iterator[Splice]:
    added = []
    if "append" in entry:
        yield from _edit_append(content, entry["append"], edit, path)
    elif common is None and edit.append:
        added.append(splice(b"append", edit_arguments((), len(b"append"), edit, SYSLINUX, path)))
    if initrd := entry.get("initrd"):
        names = _value(content, initrd).decode(errors="surrogateescape").split(",")
        text = "".join(f",{name}" for name in missing_initrds(names, edit))
        yield Splice(initrd.end, initrd.end, text.encode())
    elif edit.initrds and not _names_initrd(content, entry.get("append", common)):
        added.append(b"initrd %b" % ",".join(edit.initrds).encode())
    kernel = entry["kernel"]
    text_before = line_end(content) + kernel.indent
    yield Splice(kernel.end, kernel.end, b"".join(text_before + text for text in added))


def _names_initrd(content: bytes, append: Line | None) -> bool:
    words = split_words(content, append.key_end, append.end) if append else ()
    return any(word.value.startswith(_INITRD) for word in words)


def _edit_append(content: bytes, append: Line, edit: BootEdit, path: str) -> Iterator[Splice]:
    words = list(split_words(content, append.key_end, append.end))
    for word in words:
        if word.value.startswith(_INITRD) and not edit.deletes(word.value):
            names = word.value.removeprefix(_INITRD).split(",")
            text = "".join(f",{name}" for name in missing_initrds(names, edit))
            yield Splice(word.end, word.end, text.encode())
    if [word.value for word in words] == ["-"] and edit.append:
        yield Splice(append.key_end, append.end, b"")
        words = []
    yield from edit_arguments(words, append.end if not words else append.key_end, edit, SYSLINUX, path)


def _limit_waiting(content: bytes, lines: list[Line], timeout_seconds: int, path: str) -> Iterator[Splice]:
    text = b"%d" % min(timeout_seconds * 10, _MAX_TIMEOUT)
    timeouts = [line for line in lines if line.key == "timeout"]
    for line in timeouts:
        if not _value(content, line).strip(b"0"):
            yield Splice(line.start, line.end, text if line.start > line.key_end else b" " + text)
    if not timeouts and path.lower().rpartition("/")[2] in _MAIN:
        yield Splice(0, 0, b"timeout " + text + line_end(content))
