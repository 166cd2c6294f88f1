"""Shutdown of the process by signals: the first one drains, the second one forces."""

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

FORCED_EXIT_SECONDS = 2
"""After the second signal the process exits even if something cannot be interrupted, such as a DNS lookup."""


class ShutdownHandler:
    """Stops the process with status 0 on SIGTERM and SIGINT; twistd would send itself the signal again.

    Args:
        force: is called at the second signal, when the shutdown has begun.
    """

    def __init__(self, reactor: EPollReactor, force: Callable[[], None]) -> None:
        self._reactor = reactor
        self._force = force
        self._has_begun = False
        self.signal_number: int | None = None
        """The signal that began the shutdown; None: it was not a signal."""

    def handle_signals(self) -> None:
        """Handle SIGTERM and SIGINT from now on."""

        def signal_received(number: int, _frame: object) -> None:
            if self._has_begun:
                signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
                signal.alarm(FORCED_EXIT_SECONDS)
                # Python removes the handler when it exits; the alarm would then kill it, with another status.
                atexit.register(signal.alarm, 0)
            self._reactor.callFromThread(self.shut_down, number)

        for handled in (signal.SIGTERM, signal.SIGINT):
            signal.signal(handled, signal_received)

    def shut_down(self, signal_number: int | None) -> None:
        """Stop the reactor; the second call calls `force`."""
        if self._has_begun:
            self._force()
            return
        self._has_begun = True
        self.signal_number = signal_number
        _stop(self._reactor)


def stop_with_failure(reactor: EPollReactor, status: int = 1) -> None:
    """Stop a reactor that runs, or is about to, in order; the process exits with this status."""
    # twistd has no exit status of its own; this runs after everything that stops in order.
    reactor.addSystemEventTrigger("after", "shutdown", os._exit, status)
    reactor.callWhenRunning(_stop, reactor)


def _stop(reactor: EPollReactor) -> None:
    """Stop it, unless it is stopping already."""
    with suppress(ReactorNotRunning):
        reactor.stop()
