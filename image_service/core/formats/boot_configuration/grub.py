r"""GRUB's configuration, edited in place.

    linux /boot/vmlinuz quiet 'a;b' --- splash      or linuxefi, linux16, $linux, ${linux}
    initrd ($root)/boot/initrd                      likewise

A line end or one of ``;{}&|<>`` ends a command. Words are in quotes or not, and a backslash before a line end
joins two lines. GRUB drops carriage returns. It passes a word with blanks to Linux in double quotes, and puts
a backslash before quotes and backslashes. Fedora's GRUB passes ``\xHH``, a character of a label, as it is; a
configuration that has one is read by such a GRUB.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import UnreadScript
from image_service.core.formats.boot_configuration.boot_edit import (
    Loader,
    Splice,
    Word,
    edit_arguments,
    line_end,
    may_be_linux,
    missing_initrds,
    splice,
)
from image_service.core.formats.boot_loader.grub_script import expand_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.core.formats.boot_configuration.boot_edit import BootEdit

_TOKEN = re.compile(
    rb"""(?P<blank>(?>[ \t\r]|\\\r*+\n)++) | (?P<comment>\#[^\n]*+)
    | (?P<end>[\n;&|<>{}])
    | (?P<word>(?>'[^']*+' | "(?>\\.|[^"\\]++)*+" | \$\{\w*+\} | \\(?!\r*+\n). | \\\r*+\n(?=\S)
        | [^\s'"\\$;&|<>{}]++ | \$(?!\{))++ | .)""",  # a character alone: a quote or backslash without an end
    re.VERBOSE | re.DOTALL,
)
_CONTINUATION = re.compile(rb"\\\r*+\n")
_SPECIAL = re.compile(r"""[\\'"$]""")
_HEXADECIMAL = re.compile(rb"\\x[0-9A-Fa-f]{2}")
_HEXADECIMAL_OR_QUOTED = re.compile(r"\\x[0-9A-Fa-f]{2}|'[^']*+'")
_DEVICE = re.compile(r"\([^()]*+\)")
_LINUX = re.compile(rb"linux(?:16|efi)?|\$\{?linux\w*\}?")
_INITRD = re.compile(rb"initrd(?:16|efi)?|\$\{?initrd\w*\}?")
_EDITED = re.compile(rb"\$?\{?(?:linux|initrd)|menuentry$|set$|timeout=")
_OPENING, _CLOSING = (b"if", b"while", b"until", b"for"), (b"fi", b"done")
_KEYWORDS = (*_OPENING, *_CLOSING, b"then", b"elif", b"else", b"do", b"!")
_SOURCING = (b"source", b".", b"configfile", b"normal")
_ENDLESS = ("timeout=-1", "timeout=")
_PLAIN = re.compile(r"(?>[\w./:=,@%+~^-]|\\x[0-9A-Fa-f]{2})+", re.ASCII)
_MAIN = "grub.cfg"
_MAX_VALUE = 256  # characters; a path has no more


def _quote(argument: str) -> str:
    return argument if _PLAIN.fullmatch(argument) else f"'{argument}'"


GRUB = Loader("GRUB", re.compile(r"""[^ -~]|["'\\]"""), _quote)
_GRUB_OF_FEDORA = Loader("GRUB", re.compile(r"""[^ -~]|["']|\\(?!x[0-9A-Fa-f]{2})"""), _quote)


@attrs.frozen
class _Command:
    """A command of a script.

    Args:
        spans: offsets of its words; the first is its name.
        block: number of the innermost braces around it; 0 if there are none.
        is_nested: True inside braces, conditions or loops.
    """

    name: bytes
    spans: tuple[tuple[int, int], ...]
    block: int
    is_nested: bool


def edit(content: bytes, edit: BootEdit, path: str) -> bytes:
    """Return an edited configuration."""
    commands = [command for command in _read_commands(content) if _EDITED.match(command.name)]
    with_initrd = {command.block for command in commands if _INITRD.fullmatch(command.name)}
    loader = _GRUB_OF_FEDORA if _HEXADECIMAL.search(content) else GRUB
    splices: list[Splice] = []
    for command in commands:
        words = list(_words(content, command))
        if _INITRD.fullmatch(command.name):
            splices += _add_initrds(content, words, edit)
        elif _LINUX.fullmatch(command.name) and len(words) > 1 and may_be_linux(words[1].value):
            splices += edit_arguments(words[2:], words[1].end, edit, loader, path)
            if edit.initrds and command.block not in with_initrd:
                name = command.name.replace(b"linux", b"initrd")
                text = b"; %b %b" % (name, " ".join(edit.initrds).encode())
                splices.append(Splice(words[-1].end, words[-1].end, text))
    if edit.timeout_seconds is not None:
        splices += _limit_waiting(content, commands, edit.timeout_seconds, path)
    return splice(content, splices)


def find_sourced(content: bytes, variables: dict[str, str]) -> Iterator[str]:
    """Yield the paths of the files that a configuration reads, without devices; ``$NAME`` in one is unknown.

    Args:
        content: the configuration.
        variables: with the known values; assignments change it on the way.
    """
    for command in _read_commands(content):
        if assignment := _assignment(command):
            name, _, value = _value(content[slice(*assignment)], variables).partition("=")
            variables[name] = _DEVICE.sub("", value) if len(value) <= _MAX_VALUE else f"${name}"
        elif command.name in _SOURCING:
            for start, end in command.spans[1:2]:
                yield _DEVICE.sub("", _value(content[start:end], variables))


def _read_commands(content: bytes) -> Iterator[_Command]:
    spans: list[tuple[int, int]] = []
    blocks, count, conditions = [0], 0, 0
    tokens = ((token.lastgroup, token.span(), token[0]) for token in _TOKEN.finditer(content))
    for kind, span, text in chain(tokens, [("end", (0, 0), b"")]):
        if kind == "word" and (spans or text not in _KEYWORDS):
            spans.append(span)
        elif kind == "word":
            conditions += (text in _OPENING) - (text in _CLOSING)
        elif kind == "end":
            if spans:
                name = content[slice(*spans[0])]
                yield _Command(name, tuple(spans), blocks[-1], len(blocks) > 1 or conditions > 0)
                spans = []
            if text == b"{":
                count += 1
                blocks.append(count)
            elif text == b"}" and len(blocks) > 1:
                blocks.pop()


def _words(content: bytes, command: _Command) -> Iterator[Word]:
    gap = command.spans[0][0]
    for start, end in command.spans:
        yield Word(gap, start, end, _value(content[start:end], {}))
        gap = end


def _value(raw: bytes, variables: Mapping[str, str]) -> str:
    text = _CONTINUATION.sub(b"", raw).decode(errors="surrogateescape")
    if not _SPECIAL.search(text):
        return text
    escaped = _HEXADECIMAL_OR_QUOTED.sub(lambda match: "\\" * match[0].startswith("\\") + match[0], text)
    try:
        return " ".join(expand_word(escaped, lambda name: variables.get(name, f"${name}")))
    except UnreadScript:  # too long
        return text


def _add_initrds(content: bytes, words: list[Word], edit: BootEdit) -> Iterator[Splice]:
    """Name initrds after the last one, on the same device."""
    last = words[-1]
    device = re.match(rb"\([^()\s'\"]*+\)|", content[last.start : last.end])
    for initrd in missing_initrds((_DEVICE.sub("", word.value) for word in words), edit):
        yield Splice(last.end, last.end, b" %b%b" % (device[0] if device else b"", initrd.encode()))


def _assignment(command: _Command) -> tuple[int, int] | None:
    """Return the offsets of ``NAME=VALUE`` in a command that assigns a variable."""
    if command.name == b"set":
        return command.spans[1] if len(command.spans) > 1 else None
    return command.spans[0] if re.match(rb"\w++=", command.name) else None


def _limit_waiting(
    content: bytes, commands: list[_Command], timeout_seconds: int, path: str
) -> Iterator[Splice]:
    text = b"timeout=%d" % timeout_seconds
    is_set = False
    for command in commands:
        assignment = _assignment(command)
        if assignment and content.startswith(b"timeout=", assignment[0]):
            is_set = is_set or not command.is_nested
            if _value(content[slice(*assignment)], {}) in _ENDLESS:
                yield Splice(*assignment, text)
    has_menu = any(command.name == b"menuentry" for command in commands)
    if has_menu and not is_set and path.lower().rpartition("/")[2] == _MAIN:
        yield Splice(0, 0, b"set " + text + line_end(content))
