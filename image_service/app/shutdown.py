"""The end of the process, as signals ask for it: well, and at the second one at once."""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.error import ReactorNotRunning

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor

HASTE_SECONDS = 2
"""What is left, at the second signal, to what cannot be interrupted, such as the look-up of a name."""


class ShutdownHandler:
    """Ends the process with status 0 on SIGTERM and SIGINT; twistd would send itself the signal again.

    Args:
        reactor: the one that runs.
        hasten: is called at the second signal, when the end has begun.
    """

    def __init__(self, reactor: EPollReactor, hasten: Callable[[], None]) -> None:
        self._reactor = reactor
        self._hasten = hasten
        self._told = False
        self.number: int | None = None
        """The signal that the end began with; None: it was no signal."""

    def on_signals(self) -> None:
        """Let signals end the process from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: object) -> None:
        if self._told:
            signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
            signal.alarm(HASTE_SECONDS)
            # Later Python takes the handler away, and the alarm would be the end, with a status of its own.
            atexit.register(signal.alarm, 0)
        self._reactor.callFromThread(self.end, number)

    def end(self, number: int | None) -> None:
        """Begin to end, or, when told a second time, end at once.

        Args:
            number: the signal's.
        """
        if self._told:
            self._hasten()
            return
        self._told = True
        self.number = number
        _stop(self._reactor)


def end_with_failure(reactor: EPollReactor) -> None:
    """End the process with status 1, in order.

    Args:
        reactor: the one that runs, or is about to.
    """
    # twistd knows no exit status of its own; this comes behind everything that stops in order.
    reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
    reactor.callWhenRunning(_stop, reactor)


def _stop(reactor: EPollReactor) -> None:
    """Stop it, unless somebody else has."""
    with suppress(ReactorNotRunning):
        reactor.stop()
