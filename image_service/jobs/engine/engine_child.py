"""The engine of one machine: Temporal's development server, a supervised child process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.logger import Logger

from image_service.concurrency.backoff import Backoff
from image_service.errors import MissingDependency, StoreFailed
from image_service.files.ofd_locks import EXCLUSIVE, try_lock
from image_service.files.private_files import open_no_follow

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IProcessTransport
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.python.failure import Failure

_log = Logger()

_HOST = "127.0.0.1"
_SUPERVISOR, _CHILD = 0, 1  # bytes of the lock file
_LOCK_DESCRIPTOR = 3  # of the child
# The process's id is there before the program can do anything, so that a later start finds it.
_START = 'echo $$ >"$1" && shift && exec "$@"'
_OPTIONS = (
    "server",
    "start-dev",
    "--headless",
    "--ip",
    _HOST,
    "--log-level",
    "warn",
    # With several partitions a poll may miss for a while what is queued in another one.
    "--dynamic-config-value",
    "matching.numTaskqueueReadPartitions=1",
    "--dynamic-config-value",
    "matching.numTaskqueueWritePartitions=1",
)
_POLL_SECONDS = 0.1
_LEFTOVER_SECONDS = 10.0
_TERMINATION_SECONDS = 10.0
_STABLE_SECONDS = 60.0
_BACKOFF = Backoff(min_seconds=0.5, max_seconds=30.0)
_MAX_LINE_BYTES = 4096


def find_program() -> Path:
    """Return the path of Temporal's program: that of the extra `jobs`, else that in PATH.

    Raises:
        MissingDependency: there is none.
    """
    installed = Path(sysconfig.get_path("scripts"), "temporal")
    if found := shutil.which(installed) or shutil.which("temporal"):
        return Path(found)
    raise MissingDependency(
        "temporal is not installed; install image-service[jobs] on x86_64 or aarch64, or set TEMPORAL_ADDRESS"
    )


def server_command(program: Path, port: int, file: Path) -> list[str]:
    """Return the command line of an engine.

    Args:
        program: Temporal's.
        port: to listen on.
        file: its SQLite database; is made if it is missing.
    """
    return [str(program), *_OPTIONS, "--port", str(port), "--db-filename", str(file)]


class EngineChild:
    """Starts the engine, starts it again when it ends, and stops it. It listens on loopback only.

    Args:
        reactor: of this process.
        directory: of the engine's files; is made if it is missing.
        program: Temporal's.
    """

    def __init__(self, reactor: PosixReactorBase, directory: Path, program: Path) -> None:
        self._reactor = reactor
        self._directory = directory
        self._program = program
        self._port = _free_port()
        self._locks: list[int] = []
        self._process: EngineProcess | None = None
        self._restart: IDelayedCall | None = None
        self._failures = 0
        self.restarts = 0
        """How often it was started again."""

    @property
    def address(self) -> str:
        """HOST:PORT, the same after a restart."""
        return f"{_HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The id of its process; None: it does not run."""
        return self._process.transport.pid if self._process else None

    async def start(self) -> None:
        """Start it, after the end of one that a crash of this service has left.

        Raises:
            StoreFailed: another process of this service uses the directory, or it cannot be used.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT
            self._locks = [open_no_follow(self._directory / "lock", flags) for _ in (_SUPERVISOR, _CHILD)]
        except OSError as error:
            raise StoreFailed(f"{self._directory}: {error.strerror}") from None
        if not try_lock(self._locks[_SUPERVISOR], EXCLUSIVE, _SUPERVISOR):
            raise StoreFailed(f"{self._directory}: another process runs the job engine of this directory")
        await self._end_leftover()
        self._spawn()

    async def stop(self) -> None:
        """End it, by force after 10 s."""
        if self._restart and self._restart.active():
            self._restart.cancel()
        process, self._process = self._process, None
        if process:
            process.signal(signal.SIGTERM)
            force = self._reactor.callLater(_TERMINATION_SECONDS, process.signal, signal.SIGKILL)
            await process.ended
            if force.active():
                force.cancel()
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks = []

    @property
    def _pid_file(self) -> Path:
        return self._directory / "pid"

    async def _end_leftover(self) -> None:
        """Kill the engine of a service that has crashed: two would write to one file."""
        waited = 0.0
        while not try_lock(self._locks[_CHILD], EXCLUSIVE, _CHILD):
            if waited > _LEFTOVER_SECONDS:
                raise StoreFailed(f"{self._directory}: the job engine of an earlier start does not end")
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):  # it may just be starting
                os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
            await deferLater(self._reactor, _POLL_SECONDS)
            waited += _POLL_SECONDS

    def _spawn(self) -> None:
        self._pid_file.write_text("")
        started_at = self._reactor.seconds()
        process = self._process = EngineProcess()
        server = server_command(self._program, self._port, self._directory / "temporal.sqlite")
        command = ["/bin/sh", "-c", _START, "sh", str(self._pid_file), *server]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._directory)}
        descriptors: dict[int, int | str] = {1: "r", 2: "r", _LOCK_DESCRIPTOR: self._locks[_CHILD]}
        self._reactor.spawnProcess(process, "/bin/sh", command, environment, childFDs=descriptors)
        process.ended.addCallback(self._restart_later, process, started_at)

    def _restart_later(self, reason: str, process: EngineProcess, started_at: float) -> None:
        if process is not self._process:
            return  # it was stopped
        self._process = None
        is_stable = self._reactor.seconds() - started_at > _STABLE_SECONDS
        self._failures = 1 if is_stable else self._failures + 1
        seconds = _BACKOFF.delay_seconds(self._failures)
        _log.error(
            "the job engine has ended: {reason} {line}; it is started again in {seconds:.1f} s",
            reason=reason,
            line=process.last_line,
            seconds=seconds,
        )
        self._restart = self._reactor.callLater(seconds, self._start_again)

    def _start_again(self) -> None:
        self.restarts += 1
        self._spawn()


class EngineProcess(ProcessProtocol):
    """One process of the engine."""

    transport: IProcessTransport

    def __init__(self) -> None:
        self.ended: Deferred[str] = Deferred()
        """Fires with the reason."""
        self.last_line = ""
        """Of what it has written."""
        self._buffer = b""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess(number)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Log its lines, which are of interest if it does not work."""
        del childFD
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._buffer = self._buffer[-_MAX_LINE_BYTES:]
        for line in filter(bytes.strip, lines):
            self.last_line = line[:_MAX_LINE_BYTES].decode(errors="replace")
            _log.debug("job engine: {line}", line=self.last_line)

    def processEnded(self, reason: Failure) -> None:
        """Report its end."""
        self.ended.callback(reason.getErrorMessage())


def _free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as found:
        found.bind((_HOST, 0))
        port: int = found.getsockname()[1]
        return port
