"""ESXi's ``boot.cfg``, edited in place.

kernelopt=runweasel cdromBoot       arguments; blanks separate them, and there are no quotes
modules=/jumpstrt.gz --- /k.b00     archives that are unpacked, in place of an initrd
timeout=5                           the menu never waits for ever
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

if TYPE_CHECKING:
    from image_service.core.formats.boot_configuration.boot_edit import BootEdit

ESXI = Loader("ESXi's boot loader", re.compile(r"""[^!-~]|["'\\]"""))


def edit(content: bytes, edit: BootEdit, path: str) -> bytes:
    """Return an edited configuration."""
    lines = {line.key: line for line in read_lines(content)}
    splices = []
    if line := lines.get("kernelopt"):
        value = content[line.start : line.end]
        edited = _edit_value(value, edit, path)
        splices.append(Splice(line.start, line.end, edited))
    elif (kernel := lines.get("kernel")) and edit.append:
        text = line_end(content) + b"kernelopt=" + _edit_value(b"", edit, path)
        splices.append(Splice(kernel.end, kernel.end, text))
    if line := lines.get("modules"):
        named = content[line.start : line.end].decode(errors="surrogateescape").split()
        added = "".join(f" --- {module}" for module in missing_initrds(named, edit))
        splices.append(Splice(line.end, line.end, added.encode()))
    return splice(content, splices)


def _edit_value(value: bytes, edit: BootEdit, path: str) -> bytes:
    words = list(split_words(value, 0, len(value)))
    edited = splice(value, edit_arguments(words, 0, edit, ESXI, path))
    return edited if edited == value else edited.lstrip(b" ")
