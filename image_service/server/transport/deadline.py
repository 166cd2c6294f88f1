"""Timeouts of a connection: one deadline that can be moved cheaply, and the client's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.http.connection_state import State
from image_service.server.transport.sending.tcp import acknowledged_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.settings.network import LimitSettings

LINGER_SECONDS = 2
"""How long a closed connection is kept for the client to read the last response (RFC 9112 9.6)."""
GET_SECONDS = 5
"""How long a draining connection waits for the GET that follows a HEAD."""
OVERLOADED_HEAD_SECONDS = 1.0
"""Deadline of the handshake and of the first head beyond the limit on connections."""
_STALL_CHECKS = 4  # in one stall timeout


class Deadline:
    """Calls back once a deadline has passed, which may be moved at any time.

    Moving it later, as every request does, costs an assignment: the armed timer checks the deadline when it
    fires.

    Args:
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
        self._set(seconds, self._clock.seconds())

    def _set(self, seconds: float, now: float) -> None:
        due = self._due = now + seconds
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


class Timeouts(Deadline):
    """The deadlines of a connection, one for each event that it waits for.

    Progress means that the client's TCP acknowledges bytes: a writer does not see it, because kernels buffer.

    Args:
        expired: called when a deadline has passed.
    """

    __slots__ = ("_acknowledged", "_begun_at", "_changed_at", "_handle", "_limits")

    def __init__(
        self, clock: IReactorTime, limits: LimitSettings, handle: socket.socket, expired: Callable[[], None]
    ) -> None:
        super().__init__(clock, expired)
        self._limits = limits
        self._handle = handle
        self._acknowledged = 0
        self._begun_at = self._changed_at = 0.0

    def await_first_head(self, state: State, *, overloaded: bool) -> None:
        """Wait for the first request, or in the state HANDSHAKE for the TLS handshake before it."""
        limits = self._limits
        seconds = limits.handshake_seconds if state is State.HANDSHAKE else limits.head_seconds
        self.set(min(OVERLOADED_HEAD_SECONDS, seconds) if overloaded else seconds)

    def await_head(self) -> None:
        """Wait for the rest of a head."""
        self.set(self._limits.head_seconds)

    def await_request(self, now: float) -> None:
        """Wait for the next request; `now`: the clock's seconds."""
        self._set(self._limits.idle_seconds, now)

    def await_get(self) -> None:
        """Wait for the GET that follows a HEAD, while the connection drains."""
        self.set(GET_SECONDS)

    def idle_since(self, state: State) -> float | None:
        """Return when a connection in a state began to wait for a request; None: it does not wait for one."""
        seconds = {
            State.HANDSHAKE: self._limits.handshake_seconds,
            State.HEAD: self._limits.head_seconds,
            State.IDLE: self._limits.idle_seconds,
        }.get(state)
        return None if seconds is None or self._due is None else self._due - seconds

    def await_progress(self, *, closing: bool = False) -> None:
        """Wait for the client to acknowledge bytes of a response, or to close the connection."""
        self._acknowledged = acknowledged_bytes(self._handle)
        self._begun_at = self._changed_at = self._clock.seconds()
        self._check_later(closing=closing)

    def unread_since(self, state: State) -> float | None:
        """Return when a connection in a state began to wait for progress; None: it does not wait for it."""
        return self._begun_at if state in {State.SENDING, State.CLOSING} else None

    def is_stalled(self, *, closing: bool) -> bool:
        """Return True if the client makes no progress; else wait on."""
        now, acknowledged = self._clock.seconds(), acknowledged_bytes(self._handle)
        if acknowledged != self._acknowledged:
            self._acknowledged, self._changed_at = acknowledged, now
        if now - self._changed_at >= self._limits.stall_seconds:
            return True
        self._check_later(closing=closing)
        return False

    def _check_later(self, *, closing: bool) -> None:
        self.set(LINGER_SECONDS if closing else self._limits.stall_seconds / _STALL_CHECKS)
