"""Kernel arguments: what may be done with them, the algebra of doing it, and an embed area's bytes.

An area holds ``<arguments><end><pad>...``. GRUB reads its area as part of a script, isolinux as plain text
up to the end of the line, and both must hand the same arguments to the kernel. So an argument may hold only
what means the same to both: printable ASCII without what GRUB's lexer would expand, escape or end a command
at. Double quotes protect blanks and most of GRUB's special characters, and the kernel reads them alike from
either loader (but an apostrophe within them gets a backslash from GRUB); one argument may hold several words.

The algebra is coreos-installer's, which knows words and blanks but no quotes: it can cut a quoted argument in
two, and what was quoted is a command to GRUB then. So the outcome is held to the same rule.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from image_service.errors import KernelArgumentInvalid, KernelArgumentsTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.coreos.kargs_areas import KargsArea, KargsAreas

MAX_CHARACTERS = 4096
"""The limit of all values together: twice the largest area, which also bounds the growth by replacing."""

_NEVER = frozenset("$`\\")  # special to GRUB even within double quotes
_ONLY_QUOTED = frozenset(";&|<>{}'#")
_REPLACEMENT = re.compile("[^=]+=[^=]+=[^=]+")


class Operation(enum.Enum):
    """What is done with a kernel argument, as assisted-service spells it."""

    APPEND = "append"
    REPLACE = "replace"
    DELETE = "delete"


@attrs.frozen
class KernelArgument:
    """One thing to be done with the kernel arguments.

    Args:
        operation: what is done.
        value: one or more words separated by blanks, with double quotes in pairs; to be appended even if
            they are there already, or to be deleted wherever they stand like this. ``KEY=OLD=NEW`` makes
            each ``KEY=OLD`` a ``KEY=NEW``. It is no mistake if there is nothing to delete or replace.
    """

    operation: Operation
    value: str = attrs.field(repr=False)


def check_argument(argument: KernelArgument) -> None:
    """Refuse an argument that a boot loader would run, split or drop.

    Args:
        argument: what was asked for.

    Raises:
        KernelArgumentInvalid: the message names the character and its position, not the argument. An
            argument of nothing but blanks is refused too: whoever sends one means something else.
    """
    if not argument.value.strip():
        raise KernelArgumentInvalid("a kernel argument is empty")
    for fault, position in _faults(argument.value):
        raise KernelArgumentInvalid(f"a kernel argument has {fault} at position {position}")
    if argument.operation is Operation.REPLACE and not _REPLACEMENT.fullmatch(argument.value):
        raise KernelArgumentInvalid(
            "a kernel argument to replace must be KEY=OLD=NEW, none of them empty or with an equals sign"
        )


def edit_arguments(current: str, arguments: Sequence[KernelArgument]) -> str:
    """Delete, append and replace arguments as coreos-installer does.

    Args:
        current: what is there; of a base image, so it is taken as it is.
        arguments: in any order: all are deleted that are to be, then appended, then replaced.

    Returns:
        the whole string, without blanks around it.

    Raises:
        KernelArgumentInvalid: one is invalid, or the result has a fault that ``current`` has not.
        KernelArgumentsTooLarge: they have more than `MAX_CHARACTERS`.
    """
    characters = sum(len(argument.value) for argument in arguments)
    if characters > MAX_CHARACTERS:
        raise KernelArgumentsTooLarge(
            f"the kernel arguments have {characters} characters, of which {MAX_CHARACTERS} are taken at most"
        )
    for argument in arguments:
        check_argument(argument)
    edited = f" {current} "
    for operation, apply in _IN_ORDER.items():
        for argument in arguments:
            if argument.operation is operation:
                edited = apply(edited, argument.value)
    _refuse_new_faults(current, edited)
    return edited.strip()


def render_area(areas: KargsAreas, area: KargsArea, arguments: str) -> bytes:
    """The bytes that make an area hold ``arguments``.

    Args:
        areas: all areas, of which the size is taken.
        area: the one to be written.
        arguments: the whole string.

    Returns:
        ``areas.size`` bytes.

    Raises:
        KernelArgumentsTooLarge: they do not fit; the message has both numbers.
    """
    text = arguments.strip().encode()
    if len(text) >= areas.size:
        raise KernelArgumentsTooLarge(
            f"the kernel arguments take {len(text)} bytes, their embed areas hold {areas.size - 1}"
        )
    return (text + area.end).ljust(areas.size, area.pad)


def _faults(text: str) -> Iterator[tuple[str, int]]:
    """What a boot loader would run, split or drop, each with its position."""
    quote: int | None = None
    for position, character in enumerate(text):
        if character == '"':
            quote = position if quote is None else None
        elif not " " <= character <= "~" or character in _NEVER:
            yield f"{character!a}", position
        elif character in _ONLY_QUOTED and quote is None:
            yield f"{character!a} outside double quotes", position
    if quote is not None:
        yield "an unpaired double quote", quote


def _refuse_new_faults(current: str, edited: str) -> None:
    before, after = (Counter(fault for fault, _ in _faults(text)) for text in (current, edited))
    for fault in after - before:
        raise KernelArgumentInvalid(
            f"the kernel arguments would come to have {fault}; what is in double quotes"
            " can only be deleted or replaced as a whole"
        )


def _delete(text: str, value: str) -> str:
    return text.replace(f" {value.strip()} ", " ")


def _append(text: str, value: str) -> str:
    return f"{text}{value.strip()} "


def _replace(text: str, value: str) -> str:
    key, old, new = value.split("=")
    return text.replace(f" {key}={old} ", f" {key}={new} ")


_IN_ORDER = {Operation.DELETE: _delete, Operation.APPEND: _append, Operation.REPLACE: _replace}
