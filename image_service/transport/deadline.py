"""Timeouts of a connection: a deadline that can be moved cheaply, and a client's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.transport.tcp import acknowledged_bytes, queued_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Deadline:
    """Calls back once a deadline has passed, which may be moved at any time.

    Moving it later, as every request does, costs an assignment: the armed timer checks the deadline when it
    fires.

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
        """Set the deadline, in seconds from now."""
        due = self._clock.seconds() + seconds
        self._due = due
        if self._timer is None:
            self._arm(seconds)
        elif due < self._fires_at:
            self._timer.reset(seconds)
            self._fires_at = due

    def clear(self) -> None:
        """Unset the deadline; an armed timer stays in the reactor."""
        self._due = None

    def cancel(self) -> None:
        """Unset the deadline and remove the timer from the reactor."""
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


class Progress:
    """A client's progress: whether its TCP acknowledges bytes. Kernel buffers hide that from a writer.

    Args:
        clock: the reactor's.
        handle: of the connection.
    """

    __slots__ = ("_acknowledged", "_changed_at", "_clock", "_handle")

    def __init__(self, clock: IReactorTime, handle: socket.socket) -> None:
        self._clock = clock
        self._handle = handle
        self._acknowledged = 0
        self._changed_at = 0.0

    def restart(self) -> None:
        """Measure from now on."""
        self._acknowledged = acknowledged_bytes(self._handle)
        self._changed_at = self._clock.seconds()

    def stalled_seconds(self) -> float:
        """Return how long nothing has been acknowledged; 0 if something was since the last call."""
        now, acknowledged = self._clock.seconds(), acknowledged_bytes(self._handle)
        if acknowledged != self._acknowledged:
            self._acknowledged, self._changed_at = acknowledged, now
        return now - self._changed_at

    @property
    def is_complete(self) -> bool:
        """True if the client's TCP has acknowledged everything."""
        return not queued_bytes(self._handle)
