"""One timer a connection, moved without touching the reactor's heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Deadline:
    """Calls back once a moment has passed that may be moved at any time.

    Moving it later, as every request does, costs an assignment: the timer that is armed finds out when
    it fires.

    Args:
        clock: the reactor's.
        expired: called when the deadline has passed; the deadline is then unset.
    """

    __slots__ = ("_clock", "_due", "_expired", "_fires_at", "_timer")

    def __init__(self, clock: IReactorTime, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._due: float | None = None
        self._timer: IDelayedCall | None = None
        self._fires_at = 0.0

    def set(self, seconds: float) -> None:
        """Let it pass ``seconds`` from now."""
        due = self._clock.seconds() + seconds
        self._due = due
        if self._timer is None:
            self._arm(seconds)
        elif due < self._fires_at:
            self._timer.reset(seconds)
            self._fires_at = due

    def clear(self) -> None:
        """Let it never pass, until it is set again."""
        self._due = None

    def cancel(self) -> None:
        """Clear it and take the timer out of the reactor."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        self._fires_at = self._clock.seconds() + seconds
        self._timer = self._clock.callLater(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._due is None:
            return
        remaining = self._due - self._clock.seconds()
        if remaining > 0:
            self._arm(remaining)
        else:
            self._due = None
            self._expired()
