"""A worker's process, as the supervisor sees it, and the channel to it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol

from image_service.app.workers.assignment import CONTROL_IN, Assignment
from image_service.app.workers.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.internet.interfaces import IProcessTransport, IReactorProcess
    from twisted.python.failure import Failure

SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""A worker ignores them: the supervisor stops it."""


class WorkerProcess(ProcessProtocol):
    """A process, from its start to its exit.

    Args:
        reactor: starts it.
        assignment: its command line.
        descriptors: its descriptors, as ``spawnProcess`` takes them.
        handlers: called with the value of each word that it sends.
        exited: is called with the reason of its exit.

    Raises:
        OSError: no process can be started.
    """

    transport: IProcessTransport

    def __init__(
        self,
        reactor: IReactorProcess,
        assignment: Assignment,
        descriptors: Mapping[int, int | str],
        handlers: Mapping[str, Callable[[Any], None]],
        exited: Callable[[str], None],
    ) -> None:
        self._channel = Channel(handlers)
        self._exited = exited
        # It imports what this process does, wherever that was started.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", "image_service.app.workers", assignment.render()]
        # The worker starts with these signals blocked, until it ignores them: a terminal sends them to all.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SHUTDOWN_SIGNALS)
        try:
            reactor.spawnProcess(self, sys.executable, command, environment, childFDs=descriptors)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def send(self, word: str, value: object = None) -> None:
        """Send a word (see ``Channel``); to a process that is exiting, nothing."""
        self._channel.send(word, value)

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def connectionMade(self) -> None:
        """Connect the channel."""
        self._channel.makeConnection(self)  # type: ignore[no-untyped-call]

    def write(self, data: bytes) -> None:
        """Write what the channel sends."""
        with suppress(KeyError):  # the pipe is closed: it is exiting
            self.transport.writeToChild(CONTROL_IN, data)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Read what the channel receives."""
        del childFD
        self._channel.dataReceived(data)  # type: ignore[no-untyped-call]

    def processEnded(self, reason: Failure) -> None:
        """Report its exit."""
        self._exited(reason.getErrorMessage())
