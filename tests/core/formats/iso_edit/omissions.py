"""Edits that leave out one of the steps without which a USB stick does not boot, or lacks files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.formats.iso_edit.partitions import HybridTables

if TYPE_CHECKING:
    import pytest

    from image_service.core.formats.iso_edit.partitions import Growth


def leave_trees_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the trees of the whole ISO alone."""
    monkeypatch.setattr(HybridTables, "volumes", ())


def grow_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the partition that holds the ISO end where it did."""
    _set_before_growth(monkeypatch, "_holders", frozenset())


def move_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the partition that holds the ISO grow over the one behind it."""
    _set_before_growth(monkeypatch, "_behind", {})


def _set_before_growth(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    grow = HybridTables.grow

    def set_and_grow(self: HybridTables, end: int) -> Growth:
        setattr(self, name, value)
        return grow(self, end)

    monkeypatch.setattr(HybridTables, "grow", set_and_grow)
