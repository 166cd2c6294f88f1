"""The counts of limited resources: of each process, and the sums over all that serve together."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, PUBLIC_SLOTS, CONNECTIONS, WAITING = range(4)
"""Cells: slots in use, those of them for public files, connections, and downloads that wait.

The last is the first of one for each kind of waiting download.
"""
CELLS = 8
Row: TypeAlias = "list[int] | memoryview[int]"


class Counts:
    """The counts of one process, and the sums over all processes that serve together.

    Args:
        row: of `CELLS` cells, which only this process writes; None: there is no other process.
        rows: those of all processes.
    """

    def __init__(self, row: Row | None = None, rows: Sequence[Row] = ()) -> None:
        self._row: Row = [0] * CELLS if row is None else row
        self._rows = rows or (self._row,)

    def own(self, cell: int) -> int:
        """Return the count of this process."""
        return self._row[cell]

    def total(self, cell: int) -> int:
        """Return the sum over all processes."""
        return sum(row[cell] for row in self._rows)

    def add(self, cell: int, change: int) -> None:
        """Change a count of this process."""
        self._row[cell] += change
