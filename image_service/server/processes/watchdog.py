"""Detects a serving process that runs but does not respond any more: its clients would wait for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.task import LoopingCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

PING_SECONDS = 5.0
"""Between two pings."""
MAX_UNANSWERED = 6
"""Pings, 30 s: a busy process responds in the next iteration of its reactor, some milliseconds later."""


class Watchdog:
    """Pings a serving process.

    It counts pings, not time: the supervisor may have been stopped as well, and has then received nothing.

    Args:
        ping: sends one; the serving process's response goes to ``pong_received``.
        stuck: is called when the serving process has not responded for too long.
    """

    def __init__(self, clock: IReactorTime, ping: Callable[[], None], stuck: Callable[[], None]) -> None:
        self._ping = ping
        self._stuck = stuck
        self._unanswered = 0
        self._pinging = LoopingCall(self._check)
        self._pinging.clock = clock

    def start(self) -> None:
        """Ping from now on; does nothing if started already."""
        if not self._pinging.running:
            self._unanswered = 0
            self._pinging.start(PING_SECONDS)

    def stop(self) -> None:
        """Stop pinging; does nothing if stopped already."""
        if self._pinging.running:
            self._pinging.stop()

    def pong_received(self) -> None:
        """Take a response."""
        self._unanswered = 0

    def _check(self) -> None:
        if self._unanswered == MAX_UNANSWERED:
            self.stop()
            self._stuck()
        else:
            self._unanswered += 1
            self._ping()
