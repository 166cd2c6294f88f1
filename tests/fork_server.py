"""The process that `tests.forks` has its programs forked from: ``python -m tests.fork_server DESCRIPTOR``.

It imports every module of the package and the plugins of twistd once. For each order on its socket it
forks, and the child becomes the program. If that is a supervisor, its first serving processes are forks, too:
its own children, made before it runs.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from ctypes import CDLL, get_errno
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import attrs
from twisted.application.service import IServiceMaker
from twisted.internet.process import Process
from twisted.plugin import getPlugins

import image_service
from image_service.common.http.tls import client_context
from image_service.server.assisted.tls import https_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NUMBER = struct.Struct("i")
"""What the status pipe of a program carries: its process id, then its wait status."""

INTERPRETERS = "TEST_WITH_INTERPRETERS"
"""A variable with which serving processes are not forks: for tests that read their environment."""

SERVING_NAME = "serving {}"
"""The name of a fork that is a serving process, with its number."""

_OF_TWISTD = ("twisted.scripts.twistd", "twisted.scripts._twistd_unix", "twisted.internet.epollreactor")
_SERVING_PROCESS = "image_service.app.processes"
OWN_NAMESPACE = Path("/proc/thread-self/ns/net")
"""The network namespace of this thread."""

_CLONE_NEWNET = 0x40000000
_set_namespace = CDLL(None, use_errno=True).setns  # os.setns, which Python has since 3.12
_DESCRIPTORS = 4
_MOST_DESCRIPTORS = 64


@attrs.frozen
class Order:
    """A program to start.

    Args:
        name: a module, run as ``-m`` does, or the path of a script.
        arguments: after it.
        environment: all of it.
        directory: where it starts.
        namespace: path of its network namespace.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = attrs.field(repr=False)
    directory: str
    namespace: str

    def run(self) -> NoReturn:
        """Be the program to its end, but for the end of the interpreter.

        This would write to all objects of all modules, and so copy the memory that is shared with the server.
        """
        ended = SystemExit()
        try:
            self._run()
        except SystemExit as error:
            ended = error
        threading._shutdown()  # type: ignore[attr-defined] # the interpreter's own first steps
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # the interpreter knows what to do then
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            if isinstance(ended.code, int | None):
                os._exit(ended.code or 0)
        raise ended

    def _run(self) -> None:
        if not Path(self.namespace).samefile(OWN_NAMESPACE):
            with Path(self.namespace).open("rb") as file:
                enter_network(file)
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = [self.name, *self.arguments]
        if ("--nodaemon" in self.arguments or "serve" in self.arguments) and INTERPRETERS not in os.environ:
            prepare_serving_processes(self.environment.get("WORKERS", ""))
        if self.name.startswith("/"):
            runpy.run_path(self.name, run_name="__main__")
        else:
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)


def enter_network(namespace: BinaryIO) -> None:
    """Move this thread, and what it starts, into a network namespace."""
    if _set_namespace(namespace.fileno(), _CLONE_NEWNET):
        raise OSError(get_errno(), f"cannot enter {namespace.name}")


def main() -> None:
    """Serve until the socket is closed; in each child, run the program instead."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in pkgutil.walk_packages(image_service.__path__, "image_service."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in _OF_TWISTD:
        import_module(name)
    list(getPlugins(IServiceMaker))
    client_context()  # whose authorities take 30 ms to load
    https_policy()  # the same
    assert "twisted.internet.reactor" not in sys.modules, "children would share its epoll descriptor"
    gc.collect()
    gc.freeze()
    order = serve(control)
    if order is not None:
        order.run()


def serve(control: socket.socket) -> Order | None:
    """Fork for each order, and report the statuses of children; return an order in its child, else None."""
    pipes: dict[int, int] = {}
    awake, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control.fileno(), awake], [], [])
        if awake in ready:
            os.read(awake, 1 << 16)
            _report_ended(pipes)
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS + 1)
            if not message:
                return None
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.detach()
                return _become_child(descriptors)
            order, pipe, *streams = descriptors
            pipes[pid] = pipe
            os.write(pipe, NUMBER.pack(pid))
            for descriptor in (order, *streams):
                os.close(descriptor)


def prepare_serving_processes(workers: str) -> None:
    """Fork as many children as a supervisor starts at once; it then starts these before any other.

    Args:
        workers: the setting; no number: none is forked.
    """
    prepared: list[tuple[int, socket.socket]] = []
    for _ in range(int(workers) if workers.isdigit() and workers != "1" else 0):
        control, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            for _, other in [*prepared, (0, control)]:
                other.close()
            _await_start(theirs).run()
        theirs.close()
        prepared.append((pid, control))
    spawn: Callable[..., bool] = Process._trySpawnInsteadOfFork

    def start(process: Process, path: Any, uid: Any, gid: Any, *command: Any) -> bool:
        _, arguments, environment, options = command
        arguments = list(map(os.fsdecode, arguments))
        if not prepared or _SERVING_PROCESS not in arguments:
            return spawn(process, path, uid, gid, *command)
        process.pid, control = prepared.pop(0)
        with control:
            words = {os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()}
            order = Order(_SERVING_PROCESS, arguments[4:], words, str(Path.cwd()), str(OWN_NAMESPACE))
            _send_start(control, order, options["fdmap"])
        process.status = -1
        return True

    Process._trySpawnInsteadOfFork = start  # type: ignore[method-assign] # Twisted has no seam for it


def _send_start(control: socket.socket, order: Order, descriptors: Mapping[int, int]) -> None:
    """Tell a child to become a program with these descriptors, by their numbers there."""
    mask = list(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    with os.fdopen(os.memfd_create("order"), "w+b", buffering=0) as text:
        text.write(json.dumps([attrs.asdict(order), list(descriptors), mask]).encode())
        text.seek(0)
        socket.send_fds(control, [b"\0"], [text.fileno(), *descriptors.values()])


def _await_start(control: socket.socket) -> Order:
    """Wait until the supervisor needs this process; end with it if it does not.

    The process then gets the name of a serving process, because its command line stays that of the server.
    """
    message, received, _, _ = socket.recv_fds(control, 1, _MOST_DESCRIPTORS)
    if not message:
        os._exit(0)
    control.detach()
    text, *descriptors = (fcntl.fcntl(each, fcntl.F_DUPFD, _MOST_DESCRIPTORS) for each in received)
    with os.fdopen(text, closefd=False) as file:
        order, numbers, mask = json.load(file)
    for number in range(_MOST_DESCRIPTORS):
        if number in numbers:
            os.dup2(descriptors[numbers.index(number)], number)
        else:
            with suppress(OSError):
                os.close(number)
    os.closerange(_MOST_DESCRIPTORS, os.sysconf("SC_OPEN_MAX"))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    Path("/proc/self/comm").write_text(SERVING_NAME.format(json.loads(order["arguments"][-1])["number"]))
    return Order(**order)


def _report_ended(pipes: dict[int, int]) -> None:
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = pipes.pop(pid)
        with suppress(BrokenPipeError):  # nobody waits for this program
            os.write(pipe, NUMBER.pack(status))
        os.close(pipe)


def _become_child(descriptors: Sequence[int]) -> Order:
    """Take the standard streams, and close everything else that the server has open."""
    text, _, *streams = descriptors
    with os.fdopen(text, closefd=False) as file:
        order = Order(**json.load(file))
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    return order


if __name__ == "__main__":
    # Once under its own name: what is pickled elsewhere names this module.
    import_module("tests.fork_server").main()
