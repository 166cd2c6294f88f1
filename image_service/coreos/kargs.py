"""Kernel arguments: what may be appended, the algebra of appending, and an embed area's bytes.

An area holds ``<arguments><end><pad>...``. GRUB reads its area as part of a script, isolinux as plain text
up to the end of the line, and both must hand the same arguments to the kernel. So an argument may hold only
what means the same to both: printable ASCII without what GRUB's lexer would expand, escape or end a command
at. Double quotes protect blanks and most of GRUB's special characters, and the kernel reads them alike from
either loader (but an apostrophe within them gets a backslash from GRUB); one argument may hold several words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.errors import KernelArgumentInvalid, KernelArgumentsTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.coreos.live_iso import KargsArea, KargsAreas

_NEVER = frozenset("$`\\")  # special to GRUB even within double quotes
_ONLY_QUOTED = frozenset(";&|<>{}'#")


def check_argument(argument: str) -> None:
    """Refuse an argument that a boot loader would run, split or drop.

    Args:
        argument: one or more words separated by blanks, with double quotes in pairs.

    Raises:
        KernelArgumentInvalid: the message names the character and its position, not the argument. An
            argument of nothing but blanks is refused too: whoever sends one means something else.
    """
    if not argument.strip():
        raise KernelArgumentInvalid("a kernel argument is empty")
    quoted = False
    for position, character in enumerate(argument):
        if character == '"':
            quoted = not quoted
        elif not " " <= character <= "~" or character in _NEVER:
            raise KernelArgumentInvalid(f"a kernel argument has {character!a} at position {position}")
        elif character in _ONLY_QUOTED and not quoted:
            raise KernelArgumentInvalid(
                f"a kernel argument has {character!a} at position {position}, outside double quotes"
            )
    if quoted:
        raise KernelArgumentInvalid("a kernel argument has an odd number of double quotes")


def append(current: str, arguments: Sequence[str]) -> str:
    """Append arguments as coreos-installer does: even those that are there already, in the given order.

    Args:
        current: what is there.
        arguments: each of which passed `check_argument`.

    Returns:
        the whole string, without blanks around it.
    """
    appended = "".join(f"{argument.strip()} " for argument in arguments)
    return f" {current} {appended}".strip()


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
