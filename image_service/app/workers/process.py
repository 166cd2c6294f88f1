"""One process that is a worker, as the supervisor sees it, and the channel to it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol

from image_service.app.workers.assignment import HEARS, Assignment
from image_service.app.workers.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from twisted.internet.interfaces import IProcessTransport, IReactorProcess
    from twisted.python.failure import Failure

ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that a worker leaves to the supervisor."""


class WorkerProcess(ProcessProtocol):
    """A process, from its start to its end.

    Args:
        reactor: starts it.
        assignment: what it is told.
        descriptors: what it is given.
        hears: what is done at each word of it, with its value.
        ended: is told how it ended.
    """

    transport: IProcessTransport

    def __init__(
        self,
        reactor: IReactorProcess,
        assignment: Assignment,
        descriptors: Mapping[int, int | str],
        hears: Mapping[str, Callable[[Any], None]],
        ended: Callable[[str], None],
    ) -> None:
        self._channel = Channel(hears)
        self._ended = ended
        # It imports what this process does, wherever that was started.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", "image_service.app.workers", assignment.dumps()]
        with _blocked():  # until it ignores them: a terminal sends its own to all
            reactor.spawnProcess(self, sys.executable, command, environment, childFDs=descriptors)

    def say(self, word: str, value: object = None) -> None:
        """Send a word; to one that is dying, nothing.

        Args:
            word: of ``Channel``'s.
            value: what JSON can hold.
        """
        self._channel.say(word, value)

    def kill(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def connectionMade(self) -> None:
        """It runs: the channel is there."""
        self._channel.makeConnection(self)  # type: ignore[no-untyped-call]

    def write(self, data: bytes) -> None:
        """Send what the channel sends."""
        with suppress(KeyError):  # the pipe is closed: it is dying
            self.transport.writeToChild(HEARS, data)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Hear what the channel receives."""
        del childFD
        self._channel.dataReceived(data)  # type: ignore[no-untyped-call]

    def processEnded(self, reason: Failure) -> None:
        """It is gone."""
        self._ended(reason.getErrorMessage())


@contextmanager
def _blocked() -> Iterator[None]:
    """Keep what ends processes from this one, and for longer from those that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
