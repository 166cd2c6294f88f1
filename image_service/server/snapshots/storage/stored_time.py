"""Stored instants, of the wall clock, and those of the process, of its monotonic clock."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime


class StoredTime:
    """Converts instants. Those of the process are the clock's seconds; minus infinity: never.

    Args:
        clock: monotonic.
        wall_clock: returns seconds since the epoch, which may be wrong, and be set.
        clock_error_seconds: how far in the future an instant may be that another host has stored.
    """

    def __init__(
        self, clock: IReactorTime, wall_clock: Callable[[], float], clock_error_seconds: float
    ) -> None:
        self._clock = clock
        self.wall_clock = wall_clock
        self._clock_error_seconds = clock_error_seconds

    def offset(self) -> float:
        """Return how far the wall clock is ahead of the monotonic one."""
        return self.wall_clock() - self._clock.seconds()

    def latest(self) -> float:
        """Return the latest instant that a replica may have stored by now."""
        return self.wall_clock() + self._clock_error_seconds

    def to_stored(self, at: float) -> float:
        """Convert an instant of the process."""
        return at + self.offset()

    def to_monotonic(self, stored_at: float) -> float:
        """Convert a stored time; one in the future, or none at all, is of a wrong clock: it means never."""
        if not stored_at <= self.latest():
            return -inf
        return min(stored_at - self.offset(), self._clock.seconds())
