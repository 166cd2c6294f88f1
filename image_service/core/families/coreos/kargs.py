"""Kernel arguments: which are accepted, and how they are edited.

GRUB reads its area of arguments (kargs_areas.py) as part of a script, isolinux as plain text
up to the end of the line, and both must pass the same arguments to the kernel. So an argument may contain
only characters with the same meaning for both: printable ASCII without those that GRUB's lexer expands,
escapes or ends a command at. Double quotes protect blanks and most of GRUB's special characters, and the
kernel reads them alike from either loader (but GRUB adds a backslash to an apostrophe in them); one argument
may have several words.

Editing follows coreos-installer, which knows words and blanks but no quotes: it can cut a quoted argument in
two, and GRUB would then run the quoted part as a command. So the result is checked by the same rule.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import KernelArgumentInvalid, KernelArgumentsTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_CHARACTERS = 4096
"""The limit of all values together: twice the largest area, which also bounds the growth by replacing."""

_NEVER = frozenset("$`\\")  # special to GRUB even in double quotes
_ONLY_QUOTED = frozenset(";&|<>{}'#")
_REPLACEMENT = re.compile("[^=]+=[^=]+=[^=]+")


class Operation(enum.Enum):
    """The edit of a kernel argument, as assisted-service spells it."""

    APPEND = "append"
    REPLACE = "replace"
    DELETE = "delete"


_ORDER = (Operation.DELETE, Operation.APPEND, Operation.REPLACE)


@attrs.frozen
class KernelArgument:
    """One edit of the kernel arguments.

    The value is one or more words separated by blanks, with double quotes in pairs. It is appended even if it
    is present; deleted wherever it stands exactly like this; ``KEY=OLD=NEW`` makes each ``KEY=OLD`` a
    ``KEY=NEW``. Deleting or replacing nothing is not an error.
    """

    operation: Operation
    value: str = attrs.field(repr=False)


def check_argument(argument: KernelArgument) -> None:
    """Raise KernelArgumentInvalid if a boot loader would execute, split or drop an argument.

    The detail has the character and its position, not the argument, which may contain a secret.
    """
    if not argument.value.strip():
        raise KernelArgumentInvalid("a kernel argument is empty")
    for fault, position in _find_faults(argument.value):
        raise KernelArgumentInvalid(f"a kernel argument has {fault} at position {position}")
    if argument.operation is Operation.REPLACE and not _REPLACEMENT.fullmatch(argument.value):
        raise KernelArgumentInvalid(
            "a kernel argument to replace must be KEY=OLD=NEW, none of them empty or with an equals sign"
        )


def edit_arguments(current: str, arguments: Sequence[KernelArgument]) -> str:
    """Delete, append and replace arguments, in this order, as coreos-installer does.

    Args:
        current: the arguments of a base image, accepted as they are.
        arguments: in any order.

    Raises:
        KernelArgumentInvalid: one is invalid, or the result has a fault that ``current`` has not.
        KernelArgumentsTooLarge: they have more than `MAX_CHARACTERS`.
    """
    characters = sum(len(argument.value) for argument in arguments)
    if characters > MAX_CHARACTERS:
        raise KernelArgumentsTooLarge(
            f"the kernel arguments have {characters} characters; at most {MAX_CHARACTERS} are accepted"
        )
    for argument in arguments:
        check_argument(argument)
    edits = list(_edit_in_order(current, arguments))
    edited = edits[-1][-1] if edits else current
    before, after = (Counter(fault for fault, _ in _find_faults(text)) for text in (current, edited))
    for fault in after - before:
        raise KernelArgumentInvalid(
            f"the kernel arguments would contain {fault}; text in double quotes"
            " can only be deleted or replaced as a whole"
        )
    return edited.strip()


def find_ineffective(current: str, arguments: Sequence[KernelArgument]) -> list[KernelArgument]:
    """Return which of the valid `arguments` delete or replace nothing, in the order of `edit_arguments`."""
    return [argument for argument, before, after in _edit_in_order(current, arguments) if before == after]


def _edit_in_order(
    current: str, arguments: Sequence[KernelArgument]
) -> Iterator[tuple[KernelArgument, str, str]]:
    """Yield each edit with the arguments before and after it, which have a blank at both ends."""
    after = f" {current} "
    for argument in sorted(arguments, key=lambda argument: _ORDER.index(argument.operation)):
        before, value = after, argument.value.strip()
        match argument.operation:
            case Operation.DELETE:
                after = before.replace(f" {value} ", " ")
            case Operation.APPEND:
                after = f"{before}{value} "
            case Operation.REPLACE:
                key, old, new = argument.value.split("=")
                after = before.replace(f" {key}={old} ", f" {key}={new} ")
        yield argument, before, after


def _find_faults(text: str) -> Iterator[tuple[str, int]]:
    """Yield each fault with its position."""
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
