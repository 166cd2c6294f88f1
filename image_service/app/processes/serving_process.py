"""A serving process: its assignment, its descriptors, and the channel to it."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol

from image_service.app.standalone_mode import StandIn
from image_service.common.concurrency.signals import UNUSED
from image_service.server.observability.log import log_descriptor
from image_service.server.processes.channel import Channel
from image_service.server.processes.environment import without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twisted.internet.interfaces import IProcessTransport, IReactorProcess
    from twisted.python.failure import Failure

SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SUPERVISED_SIGNALS = (*SHUTDOWN_SIGNALS, signal.SIGHUP, *UNUSED)
"""A serving process ignores them: the supervisor stops it, and has it reload."""
CONTROL_IN, CONTROL_OUT, MEMORY, SLOTS, CREDENTIALS = range(3, 8)
"""Descriptors that every serving process has."""
FIRST_LISTENER = 8
"""From here on: a socket of each port for process 0, then for process 1, and so on."""


@attrs.frozen
class Assignment:
    """A serving process's number and resources: the one argument of its command line."""

    number: int  # from 0 on
    processes: int  # how many there are
    ports: int  # how many ports each listens on
    stand_in: StandIn | None  # to call in assisted-service's place; None: assisted-service
    base_url: str  # by which clients reach the service now

    def render(self) -> str:
        """Return the argument of the command line."""
        return json.dumps(attrs.asdict(self), default=str)

    @classmethod
    def parse(cls, argument: str) -> Assignment:
        """Return the assignment that was rendered."""
        members = json.loads(argument)
        stand_in = members.pop("stand_in")
        return cls(**members, stand_in=stand_in and StandIn(**stand_in))

    def descriptors(
        self, memory: int, slots: int, credentials: int, listeners: Sequence[int]
    ) -> dict[int, int | str]:
        """Map the serving process's descriptors to the supervisor's, as ``spawnProcess`` takes them."""
        given = (memory, slots, credentials, *listeners)
        return {
            0: 0,
            1: log_descriptor(),
            2: 2,
            CONTROL_IN: "w",
            CONTROL_OUT: "r",
            **dict(enumerate(given, MEMORY)),
        }


class ServingProcess(ProcessProtocol):
    """A process, from its start to its exit.

    Args:
        descriptors: as ``spawnProcess`` takes them.
        handlers: called with the value of each word that it sends.
        exited: is called with the reason of its exit and its status; None: a signal ended it.

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
        exited: Callable[[str, int | None], None],
    ) -> None:
        self._channel = Channel(handlers)
        self._exited = exited
        # It imports from the same directories as this process.
        environment = {
            **without_credentials(os.environ),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        command = [sys.executable, "-P", "-m", "image_service.app.processes", assignment.render()]
        # It starts with these signals blocked, until it ignores them: a terminal sends them to all.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISED_SIGNALS)
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
        """Write the bytes that the channel sends."""
        with suppress(KeyError):  # the pipe is closed: it is exiting
            self.transport.writeToChild(CONTROL_IN, data)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Pass bytes to the channel."""
        del childFD
        self._channel.dataReceived(data)  # type: ignore[no-untyped-call]

    def processEnded(self, reason: Failure) -> None:
        """Report its exit."""
        self._exited(reason.getErrorMessage(), getattr(reason.value, "exitCode", None))
