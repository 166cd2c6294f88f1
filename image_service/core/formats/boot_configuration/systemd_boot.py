"""Entries and ``loader.conf`` of systemd-boot, edited in place.

linux   /vmlinuz                an entry: lines of a key and a value, ``#`` begins a comment
initrd  /initrd                 one or more lines
options quiet                   one or more lines; there are no quotes
timeout menu-force              in loader.conf: without a number the menu waits for ever
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.formats.boot_configuration.boot_edit import (
    Loader,
    Splice,
    edit_arguments,
    line_end,
    missing_initrds,
    read_lines,
    splice,
    split_words,
)
from image_service.core.formats.boot_loader.loader_entry import LOADER_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.core.formats.boot_configuration.boot_edit import BootEdit, Line

SYSTEMD_BOOT = Loader("systemd-boot", re.compile('[^!-~]|"'))

_ENDLESS = b"menu-force"


def edit(content: bytes, edit: BootEdit, path: str) -> bytes:
    """Return an edited entry, or an edited loader.conf."""
    lines = list(read_lines(content))
    if path.lower().endswith(LOADER_CONFIG):
        return splice(content, _limit_waiting(content, lines, edit))
    kernels, initrds, options = (
        [line for line in lines if line.key == key] for key in ("linux", "initrd", "options")
    )
    if not kernels:
        return content
    words = [word for line in options for word in split_words(content, line.key_end, line.end)]
    splices: list[Splice] = []
    added: list[bytes] = []
    if options:
        splices += edit_arguments(words, options[0].key_end, edit, SYSTEMD_BOOT, path)
    elif edit.append:
        added.append(splice(b"options", edit_arguments((), len(b"options"), edit, SYSTEMD_BOOT, path)))
    named = [content[line.start : line.end].decode(errors="surrogateescape") for line in initrds]
    added += [b"initrd %b" % initrd.encode() for initrd in missing_initrds(named, edit)]
    last = (initrds or kernels)[-1]
    new_line = line_end(content) + last.indent
    splices.append(Splice(last.end, last.end, b"".join(new_line + text for text in added)))
    return splice(content, splices)


def _limit_waiting(content: bytes, lines: Iterable[Line], edit: BootEdit) -> Iterator[Splice]:
    for line in lines:
        is_endless = line.key == "timeout" and content[line.start : line.end] == _ENDLESS
        if is_endless and edit.timeout_seconds is not None:
            yield Splice(line.start, line.end, b"%d" % edit.timeout_seconds)
