"""A child process that is started again when it ends."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger

from image_service.common.concurrency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall, IProcessTransport, IReactorTime
    from twisted.python.failure import Failure

_log = Logger()

_STEADY_SECONDS = 60.0
"""After this time without an end, a process is restarted with the initial delay."""
_BACKOFF = Backoff(min_seconds=0.5, max_seconds=30.0)
_MAX_LINE_BYTES = 4096


class SupervisedProcess:
    """Starts a process, starts it again when it ends, and stops it.

    Args:
        name: for the log, such as ``the worker``.
        spawn: starts a process with this protocol, whose pipes, if there are any, are read as lines.
        stop_seconds: from SIGTERM to SIGKILL.
    """

    def __init__(
        self, clock: IReactorTime, name: str, spawn: Callable[[ChildProcess], object], stop_seconds: float
    ) -> None:
        self._clock = clock
        self._name = name
        self._spawn = spawn
        self._stop_seconds = stop_seconds
        self._process: ChildProcess | None = None
        self._restart: IDelayedCall | None = None
        self._failures = 0
        self.restarts = 0
        """The number of restarts."""
        self.fault = ""
        """Why it ended last; "": it never did."""

    @property
    def pid(self) -> int | None:
        """The id of the process; None: it does not run."""
        return self._process.transport.pid if self._process else None

    def start(self) -> None:
        """Start the process."""
        started_at = self._clock.seconds()
        process = self._process = ChildProcess(self._name)
        self._spawn(process)
        process.ended.addCallback(self._restart_later, process, started_at)

    async def stop(self) -> None:
        """End it, by force after `stop_seconds`."""
        if self._restart is not None and self._restart.active():
            self._restart.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.signal(signal.SIGTERM)
            force = self._clock.callLater(self._stop_seconds, process.signal, signal.SIGKILL)
            await process.ended
            if force.active():
                force.cancel()

    def _restart_later(self, reason: str, process: ChildProcess, started_at: float) -> None:
        if process is not self._process:
            return  # it was stopped
        self._process = None
        is_steady = self._clock.seconds() - started_at > _STEADY_SECONDS
        self._failures = 1 if is_steady else self._failures + 1
        seconds = _BACKOFF.delay_seconds(self._failures)
        self.fault = f"{reason} {process.last_line}".strip()
        _log.error(
            "{name} has ended: {reason} {line}; it is started again in {seconds:.1f} s",
            name=self._name,
            reason=reason,
            line=process.last_line,
            seconds=seconds,
        )
        self._restart = self._clock.callLater(seconds, self._start_again)

    def _start_again(self) -> None:
        self.restarts += 1
        self.start()


class ChildProcess(ProcessProtocol):
    """The protocol of one child process; reports its end."""

    transport: IProcessTransport

    def __init__(self, name: str) -> None:
        self.ended: Deferred[str] = Deferred()
        """Fires with the reason."""
        self.last_line = ""
        """The last line from its pipes."""
        self._name = name
        self._buffer = b""

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it has ended."""
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess(number)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Log its lines, for the search for faults."""
        del childFD
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._buffer = self._buffer[-_MAX_LINE_BYTES:]
        for line in filter(bytes.strip, lines):
            self.last_line = line[:_MAX_LINE_BYTES].decode(errors="replace")
            _log.debug("{name}: {line}", name=self._name, line=self.last_line)

    def processEnded(self, reason: Failure) -> None:
        """Report its end."""
        self.ended.callback(reason.getErrorMessage())
