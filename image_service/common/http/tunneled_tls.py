"""TLS through a proxy that is itself reached by TLS; Python's SSLSocket cannot be wrapped once more."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_Result = TypeVar("_Result")

_RECORD_BYTES = 32 * 1024  # more than a record of TLS


class TunneledTls:
    """A TLS connection within one, with those methods of a socket that the client uses.

    Args:
        outer: to the proxy, which has opened a tunnel.
        host: of the peer at the end of the tunnel.
    """

    def __init__(self, outer: ssl.SSLSocket, context: ssl.SSLContext, host: str) -> None:
        self.outer = outer
        self._seconds: float | None = None
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    def settimeout(self, seconds: float | None) -> None:
        """Bound each of the other calls, as a whole."""
        self._seconds = seconds

    def do_handshake(self) -> None:
        """Do the handshake with the peer."""
        self._run(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._run(lambda: self._tls.write(data))

    def recv(self, size: int) -> bytes:
        """Return the next bytes; none: the peer has closed the connection."""
        try:
            return self._run(lambda: self._tls.read(size))
        except ssl.SSLEOFError:  # without an alert, which SSLSocket accepts too
            return b""

    def recv_into(self, target: memoryview) -> int:
        """Fill the begin of `target`; return how many bytes, 0: as `recv`."""
        try:
            # With a buffer, the result is a number; the annotation has that without one.
            return self._run(lambda: self._tls.read(len(target), target))  # type: ignore[return-value]
        except ssl.SSLEOFError:
            return 0

    def close(self) -> None:
        """Close the connection to the proxy."""
        self.outer.close()

    def _run(self, step: Callable[[], _Result]) -> _Result:
        """Repeat a step until it has received what it needs, and send what it has written."""
        deadline = None if self._seconds is None else time.monotonic() + self._seconds
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._receive(deadline)
            else:
                self._flush(deadline)
                return result

    def _flush(self, deadline: float | None) -> None:
        if data := self._to_send.read():
            self._wait_until(deadline)
            self.outer.sendall(data)

    def _receive(self, deadline: float | None) -> None:
        self._wait_until(deadline)
        if data := self.outer.recv(_RECORD_BYTES):
            self._received.write(data)
        else:
            self._received.write_eof()

    def _wait_until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.outer.settimeout(left)


Stream: TypeAlias = "socket.socket | TunneledTls"
"""A connection that is open."""
