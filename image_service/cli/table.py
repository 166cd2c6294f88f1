"""Tables for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def render_table(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    """Make a table.

    Args:
        columns: keys of what is shown; in upper case they are its head.
        rows: what is shown; what a terminal would obey is escaped.

    Returns:
        lines, each column as wide as it has to be.
    """
    lines = [[column.upper().replace("_", " ") for column in columns]]
    lines += [[printable(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in lines)
    return "".join(f"{line}\n" for line in padded)


def printable(text: str) -> str:
    """Escape what a terminal would obey."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
