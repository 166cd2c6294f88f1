"""Notices a worker that runs and does nothing any more: its clients would wait for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.task import LoopingCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

PING_SECONDS = 5.0
"""Between two pings."""
MOST_UNANSWERED = 6
"""Without an answer, 30 s: a busy worker answers in the next turn of its reactor, some milliseconds later."""


class Watchdog:
    """Pings a worker.

    It counts pings, not time: who supervises may have been stopped as well, and has then not listened.

    Args:
        clock: the reactor's.
        ping: does so; the worker's answer goes to ``heard``.
        stuck: is called when the worker has not answered for too long.
    """

    def __init__(self, clock: IReactorTime, ping: Callable[[], None], stuck: Callable[[], None]) -> None:
        self._ping = ping
        self._stuck = stuck
        self._unanswered = 0
        self._pinging = LoopingCall(self._turn)
        self._pinging.clock = clock

    def start(self) -> None:
        """Watch from now on, unless that is so already."""
        if not self._pinging.running:
            self._unanswered = 0
            self._pinging.start(PING_SECONDS)

    def stop(self) -> None:
        """Watch no more."""
        if self._pinging.running:
            self._pinging.stop()

    def heard(self) -> None:
        """Take an answer."""
        self._unanswered = 0

    def _turn(self) -> None:
        if self._unanswered == MOST_UNANSWERED:
            self.stop()
            self._stuck()
        else:
            self._unanswered += 1
            self._ping()
