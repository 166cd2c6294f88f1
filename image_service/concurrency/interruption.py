"""How ``stop()`` ends what threads are doing: they look between two blocks, and their sockets are shut."""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref


class Interrupted(Exception):
    """The work was given up because the service stops."""


class Interruption:
    """A flag that is set once, and the sockets that a thread may be waiting on when it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._happened = threading.Event()

    @property
    def happened(self) -> bool:
        """Whether ``interrupt`` was called."""
        return self._happened.is_set()

    def interrupt(self) -> None:
        """Make every ``check`` raise from now on, and wake the threads that wait for a peer."""
        with self._lock:
            self._happened.set()
            for watched in self._sockets:
                _shut(watched)

    def check(self) -> None:
        """Let a thread go on.

        Raises:
            Interrupted: it is to end.
        """
        if self.happened:
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Let a thread go on after a while.

        Raises:
            Interrupted: it is to end, and at once.
        """
        if self._happened.wait(seconds):
            raise Interrupted

    def watch(self, opened: socket.socket) -> None:
        """Shut this socket when the interruption comes; at once if it is over already."""
        with self._lock:
            self._sockets.add(opened)
            if self.happened:
                _shut(opened)


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already, or not connected any more
        # Not the method of SSLSocket, which takes the TLS state away under the reading thread.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
