"""Clients that read only when they are told to, with kernel buffers too small to hide that."""

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
_PATIENCE_SECONDS = 100
_RECEIVE_BYTES = 64 * 1024


@attrs.define
class Reader:
    """A download.

    Args:
        socket: connected; TLS or plain.
        received: of the content.
    """

    socket: socket.socket
    head: str = ""
    received: bytearray = attrs.field(factory=bytearray)

    @property
    def status(self) -> int:
        """Of the answer, whose head has been read."""
        return int(self.head.split(maxsplit=2)[1])

    def fields(self) -> dict[str, str]:
        """Header fields by lower-case name."""
        lines = [line.partition(": ") for line in self.head.split("\r\n")[1:]]
        return {name.lower(): value for name, _, value in lines}

    def read_head(self) -> None:
        """Wait for the head, and take what comes with it."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive(_BUFFER_BYTES)
        head, _, rest = received.partition(b"\r\n\r\n")
        self.head = head.decode()
        self.received += rest

    def read(self, count: int) -> None:
        """Read so many bytes more."""
        aim = len(self.received) + count
        while len(self.received) < aim:
            self.received += self._receive(aim - len(self.received))

    def read_to_the_end(self) -> bytes:
        """Read all that was promised, and give it."""
        self.read(int(self.fields()["content-length"]) - len(self.received))
        return bytes(self.received)

    def at_end(self) -> bool:
        """Wait for more; whether the server has ended the connection in order instead."""
        return self.socket.recv(1) == b""

    def _receive(self, limit: int) -> bytes:
        data = self.socket.recv(min(limit, _RECEIVE_BYTES))
        assert data, f"an end in order after {len(self.received)} bytes"
        return data


@contextmanager
def reading(url: str, *fields: str, ca: Path | None = None) -> Iterator[Reader]:
    """Ask for what is at a URL, without reading any of it yet.

    Args:
        url: http or https.
        fields: more header fields.
        ca: PEM file that the server's certificate is trusted by.
    """
    parts = urlsplit(url)
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        plain.settimeout(_PATIENCE_SECONDS)
        plain.connect((parts.hostname, parts.port))
        connection = plain
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca)
            connection = context.wrap_socket(plain, server_hostname=parts.hostname)
        with connection:
            head = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *fields, "", ""]
            connection.sendall("\r\n".join(head).encode())
            yield Reader(connection)
