"""Stops work in threads: they check a flag between two blocks, and their sockets are shut down."""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref


class Interrupted(Exception):
    """The work was abandoned because the service stops."""


class Interruption:
    """A flag that is set once, and the sockets that are shut down when it is set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._event = threading.Event()

    @property
    def is_set(self) -> bool:
        """True if ``interrupt`` was called."""
        return self._event.is_set()

    def interrupt(self) -> None:
        """Make every check raise from now on, and wake the threads that wait for a peer."""
        with self._lock:
            self._event.set()
            for watched in self._sockets:
                _shut_down(watched)

    def raise_if_interrupted(self) -> None:
        """Raise ``Interrupted`` if the flag is set."""
        if self.is_set:
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleep; raise ``Interrupted`` as soon as the flag is set."""
        if self._event.wait(seconds):
            raise Interrupted

    def watch_socket(self, opened: socket.socket) -> None:
        """Shut the socket down when the flag is set; immediately if it is set already."""
        with self._lock:
            self._sockets.add(opened)
            if self.is_set:
                _shut_down(opened)


def _shut_down(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already, or not connected any more
        # Not SSLSocket.shutdown, which discards the TLS state that the reading thread uses.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
