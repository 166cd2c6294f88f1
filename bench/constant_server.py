"""The least that a Twisted server does for a range: no parsing, and a constant response by one call.

``python -m bench.constant_server PORT BYTES [MICROSECONDS]``: the length of each response's content, and how
long a loop takes that each request adds. It serves no image, so it answers HEAD with the size of a large one.
"""

from __future__ import annotations

import sys
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.tcp import Server

_IMAGE_BYTES = 1 << 30
_HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "1"\r\nAccept-Ranges: bytes\r\n\r\n' % _IMAGE_BYTES
_RANGE = (
    b"HTTP/1.1 206 Partial Content\r\nDate: Sun, 29 Nov 2026 06:19:12 GMT\r\nServer: bench\r\n"
    b"Content-Range: bytes 0-%d/%d\r\nContent-Length: %d\r\n"
    b'ETag: "f005f33bf6148cf7eb267baa30aed38eaf85b45b"\r\nLast-Modified: Sun, 29 Nov 2026 06:19:12 GMT'
    b"\r\n\r\n"
)


class ConstantConnection(Protocol):
    """Takes all that arrives at once for one request."""

    def __init__(self, response: bytes, seconds: float) -> None:
        self._response = response
        self._seconds = seconds

    def connectionMade(self) -> None:
        """Accepted."""
        self._socket = cast("Server", self.transport).getHandle()

    def dataReceived(self, data: bytes) -> None:
        """Respond."""
        if self._seconds:
            end = perf_counter() + self._seconds
            while perf_counter() < end:
                pass
        self._socket.send(_HEAD if data.startswith(b"HEAD") else self._response)


def serve(reactor: EPollReactor, port: str, length: str, microseconds: str = "0") -> Deferred[None]:
    """Serve until a signal."""
    response = _RANGE % (int(length) - 1, _IMAGE_BYTES, int(length)) + bytes(int(length))
    connection = partial(ConstantConnection, response, int(microseconds) / 1_000_000)
    reactor.listenTCP(int(port), Factory.forProtocol(connection), interface="127.0.0.1")
    return Deferred()


if __name__ == "__main__":
    react(serve, sys.argv[1:])
