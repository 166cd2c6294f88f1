"""Programs of this project, started as forks of one process that has imported them already.

A start of Python with the modules of the service costs seconds of CPU on a slow machine, a fork milliseconds.
The program is the same from there on: its arguments, environment, directory, standard streams, signals and
exit. It trusts no certificate authority of the system, unless a test says so. Tests of the start itself, of
memory, of ``/proc`` and of terminals use `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs

from tests.fork_server import NUMBER, Order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

ROOT = Path(__file__).resolve().parents[1]
TWISTD = str(Path(sys.executable).with_name("twistd"))
NAMESPACES = Path("/run/netns")
"""Where iproute2 has network namespaces."""

# Each program would read some 150 certificates, which takes longer than the rest of its start.
_NO_SYSTEM_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


class Fork:
    """A program that runs, with the part of `subprocess.Popen` that tests use.

    Args:
        command: this Python with ``-m`` and a module of the package, or twistd; then arguments.
        cwd: directory in which it starts; None: this one.
        env: its environment; None: this one.
        namespace: name of its network namespace; empty: that of this thread.
        stdin: a file or descriptor; None: that of this process.
        stdout: same.
        stderr: same.
    """

    def __init__(  # noqa: PLR0913 - as many as subprocess has
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        namespace: str = "",
        stdin: int | IO[bytes] = 0,
        stdout: int | IO[bytes] = 1,
        stderr: int | IO[bytes] = 2,
    ) -> None:
        self.args = [str(word) for word in command]
        self.returncode: int | None = None
        program, *arguments = self.args
        if program != TWISTD:
            assert (program, arguments[0]) == (sys.executable, "-m"), f"cannot fork {self.args}"
            program, *arguments = arguments[1:]
        environment = _NO_SYSTEM_AUTHORITIES | dict(os.environ if env is None else env)
        order = Order(
            program, arguments, environment, str(cwd or Path.cwd()), str(_find_namespace(namespace))
        )
        self._status, pipe = os.pipe()
        text = os.memfd_create("order")
        try:
            os.write(text, json.dumps(attrs.asdict(order)).encode())
            os.lseek(text, 0, os.SEEK_SET)
            streams = [each if isinstance(each, int) else each.fileno() for each in (stdin, stdout, stderr)]
            socket.send_fds(_server(), [b"\0"], [text, pipe, *streams])
        finally:
            os.close(text)
            os.close(pipe)
        (self.pid,) = NUMBER.unpack(os.read(self._status, NUMBER.size))

    def __enter__(self) -> Self:
        """Return the program."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until it has ended."""
        self.wait()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs; negative: the signal that ended it."""
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, at most some seconds, and return the exit status.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        status = self._read_status(None if timeout is None else timeout * 1000)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def _read_status(self, milliseconds: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if poll.poll(milliseconds):
                (status,) = NUMBER.unpack(os.read(self._status, NUMBER.size))
                os.close(self._status)
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = Fork | subprocess.Popen[bytes]
"""A program that runs."""


def start(  # noqa: PLR0913 - same
    command: Sequence[str | Path],
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    namespace: str = "",
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> Process:
    """Start a program of this project as a fork, and any other, which may start one, as itself."""
    program, *arguments = command
    is_module = program == sys.executable and arguments[0] == "-m"
    is_ours = program == TWISTD or (is_module and str(arguments[1]).startswith(("image_service", "tests.")))
    # The dynamic linker reads LD_PRELOAD when a program is executed.
    if is_ours and env["PYTHONPATH"] == str(ROOT) and "LD_PRELOAD" not in env:
        return Fork(command, cwd=cwd, env=env, namespace=namespace, stdout=stdout, stderr=stderr)
    place = ("ip", "netns", "exec", namespace) if namespace else ()
    env = _NO_SYSTEM_AUTHORITIES | dict(env)
    return subprocess.Popen((*place, *command), cwd=cwd, env=env, stdout=stdout, stderr=stderr)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: str = "",
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its status and what it printed.

    Args:
        command: see `Fork`.
        cwd: same.
        env: same.
        text: its standard input.
        timeout: in seconds.
    """
    with (
        os.fdopen(os.memfd_create("stdin"), "w+b") as stdin,
        os.fdopen(os.memfd_create("stdout"), "w+b") as stdout,
        os.fdopen(os.memfd_create("stderr"), "w+b") as stderr,
    ):
        stdin.write(text.encode())
        stdin.seek(0)
        fork = Fork(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            status = fork.wait(timeout)
        finally:
            fork.kill()
        printed = []
        for stream in (stdout, stderr):
            stream.seek(0)
            printed.append(stream.read().decode())
        return subprocess.CompletedProcess(fork.args, status, *printed)


def _find_namespace(name: str) -> Path:
    own = Path("/proc", str(os.getpid()), "task", str(threading.get_native_id()), "ns/net")
    return NAMESPACES / name if name else own


@cache
def _server() -> socket.socket:
    """Start the process that forks; it ends when this one does."""
    ours, theirs = socket.socketpair()
    atexit.register(ours.close)
    with theirs:
        theirs.set_inheritable(True)
        command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
        os.posix_spawn(sys.executable, command, {**os.environ, "PYTHONPATH": str(ROOT)})
    return ours
