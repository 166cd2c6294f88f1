"""The process that `tests.forks` has its programs forked from: ``python -m tests.fork_server DESCRIPTOR``.

It imports every module of the package once. For each order on its socket it forks, and the
child becomes the program.
"""

from __future__ import annotations

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
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import attrs

import image_service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUMBER = struct.Struct("i")
"""What the status pipe of a program carries: its process id, then its wait status."""

_OF_TWISTD = ("twisted.scripts.twistd", "twisted.scripts._twistd_unix", "twisted.internet.epollreactor")
_DESCRIPTORS = 4


@attrs.frozen
class Order:
    """A program to start.

    Args:
        name: a module, run as ``-m`` does, or the path of a script.
        arguments: after it.
        environment: all of it.
        directory: where it starts.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = attrs.field(repr=False)
    directory: str

    def run(self) -> None:
        """Be the program; the interpreter then ends as after any other."""
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = [self.name, *self.arguments]
        if self.name.startswith("/"):
            runpy.run_path(self.name, run_name="__main__")
        else:
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve until the socket is closed; in each child, run the program instead."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in pkgutil.walk_packages(image_service.__path__, "image_service."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in _OF_TWISTD:
        import_module(name)
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
