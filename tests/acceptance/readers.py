"""Clients that read only on request, with kernel buffers too small to hide it."""

from __future__ import annotations

import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BUFFER_BYTES = 4096
_TIMEOUT_SECONDS = 100
_RECEIVE_BYTES = 64 * 1024


@attrs.define
class Reader:
    """A download in progress.

    Args:
        socket: connected; TLS or plain.
        received: bytes of content so far.
    """

    socket: socket.socket
    head: str = ""
    received: bytearray = attrs.field(factory=bytearray)

    @property
    def status(self) -> int:
        """Return the status; the head must have been read."""
        return int(self.head.split(maxsplit=2)[1])

    def fields(self) -> dict[str, str]:
        """Return the header fields by lower-case name."""
        lines = [line.partition(": ") for line in self.head.split("\r\n")[1:]]
        return {name.lower(): value for name, _, value in lines}

    def read_head(self) -> None:
        """Read the head, and the content that arrives with it."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive(_BUFFER_BYTES)
        head, _, rest = received.partition(b"\r\n\r\n")
        self.head = head.decode()
        self.received += rest

    def read(self, count: int) -> None:
        """Read `count` more bytes."""
        aim = len(self.received) + count
        while len(self.received) < aim:
            self.received += self._receive(aim - len(self.received))

    def read_to_the_end(self) -> bytes:
        """Read and return the whole content."""
        self.read(int(self.fields()["content-length"]) - len(self.received))
        return bytes(self.received)

    def at_end(self) -> bool:
        """Wait for input; return True if the server has closed the connection in order."""
        return self.socket.recv(1) == b""

    def _receive(self, limit: int) -> bytes:
        data = self.socket.recv(min(limit, _RECEIVE_BYTES))
        assert data, f"an end in order after {len(self.received)} bytes"
        return data


@contextmanager
def reading(url: str, *fields: str, ca: Path | None = None) -> Iterator[Reader]:
    """Send a request without reading the response.

    Args:
        url: http or https.
        fields: additional header fields.
        ca: PEM file of the CA of the server's certificate.
    """
    parts = urlsplit(url)
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        plain.settimeout(_TIMEOUT_SECONDS)
        plain.connect((parts.hostname, parts.port))
        connection = plain
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca)
            connection = context.wrap_socket(plain, server_hostname=parts.hostname)
        with connection:
            head = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *fields, "", ""]
            connection.sendall("\r\n".join(head).encode())
            yield Reader(connection)
