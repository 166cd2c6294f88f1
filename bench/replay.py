"""Sends the same requests again and again, for next to nothing: answers are thrown away in the kernel.

What drives a server on the same machine takes CPU time from it. So the requests are made beforehand, the
length of each answer is learnt by reading it once, and afterwards ``recv(MSG_TRUNC)`` drops so many bytes
without copying them. SO_RCVLOWAT keeps the kernel from waking this process before there is enough to drop, or
all that was asked for. Plain HTTP only.
"""

from __future__ import annotations

import math
import re
import selectors
import socket
import time
from contextlib import ExitStack, closing
from itertools import cycle, repeat
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from bench.wrk import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WASTE = bytearray(16 * 1024 * 1024)
"""Room for what is never written."""
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_PATIENCE_SECONDS = 60
_ENOUGH_BYTES = 1024 * 1024
"""What it is worth waking up for: sixteen ranges of 64 KiB; kernels have room for it by default."""


@attrs.frozen
class Exchange:
    """Requests that are sent together, pipelined, and the length of all their answers."""

    sent: bytes
    requests: int
    answer_bytes: int


def request(url: str, method: str = "GET", first: int | None = None, length: int = 0) -> bytes:
    """Write a request, for a range if it has a first byte."""
    parts = urlsplit(url)
    lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
    if first is not None:
        lines.append(f"Range: bytes={first}-{first + length - 1}")
    return "\r\n".join([*lines, "", ""]).encode()


def learn(url: str, requests: Sequence[bytes]) -> tuple[Exchange, ...]:
    """Ask each request once, on one connection.

    Args:
        url: of the server.
        requests: each is one.

    Returns:
        the requests in order, with the lengths of their answers.

    Raises:
        ConnectionError: an answer is none of 2xx.
    """
    with closing(_connect(url)) as connection, connection.makefile("rb", 1024 * 1024) as answers:
        found = []
        for each in requests:
            connection.sendall(each)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += _some(answers.readline())
            length = 0 if each.startswith(b"HEAD ") else _content_length(head)
            answers.read(length)
            found.append(Exchange(each, 1, len(head) + length))
    return tuple(found)


def pipelined(exchanges: Sequence[Exchange]) -> Exchange:
    """Send several together."""
    return Exchange(
        b"".join(each.sent for each in exchanges),
        sum(each.requests for each in exchanges),
        sum(each.answer_bytes for each in exchanges),
    )


def replay(
    url: str,
    scripts: Sequence[Sequence[Exchange]],
    seconds: float = math.inf,
    *,
    ahead: int = 1,
    most: float = math.inf,
) -> Traffic:
    """Have clients go through their scripts, again and again, and wait for the last answers.

    Args:
        url: of the server.
        scripts: what each client asks, one connection each.
        seconds: after which nothing more is asked.
        ahead: exchanges that are under way at a time on a connection.
        most: requests after which nothing more is asked.

    Returns:
        what was answered.

    Raises:
        ConnectionError: an answer was longer or shorter than it had been, or none.
    """
    with ExitStack() as stack:
        clients = [_Client(stack.enter_context(closing(_connect(url))), script) for script in scripts]
        began = time.monotonic()
        asked = sum(client.send_next() for client in clients for _ in range(ahead))
        for client in _ended(clients):
            if time.monotonic() - began < seconds and asked < most:
                asked += client.send_next()
        took = time.monotonic() - began
        return Traffic(asked, sum(client.received for client in clients), took)


def _ended(clients: Sequence[_Client]) -> Iterator[_Client]:
    """Throw away what arrives; each client comes up when an exchange of its has ended, until none is left."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        while selector.get_map():
            ready = selector.select(_PATIENCE_SECONDS)
            if not ready:
                raise ConnectionError(f"nothing came for {_PATIENCE_SECONDS} s")
            for key, _ in ready:
                client = key.data
                yield from repeat(client, client.receive())
                if client.is_done:
                    selector.unregister(client.socket)


def download(url: str) -> Traffic:
    """Read a whole image once, on a connection of its own.

    Raises:
        ConnectionError: the answer is none of 2xx, or ends too early.
    """
    began = time.monotonic()
    with closing(_connect(url)) as connection:
        connection.sendall(request(url))
        start = b""
        while b"\r\n\r\n" not in start:
            start += _some(connection.recv(65536))
        head = start.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        size = len(head) + _content_length(head)
        left = size - len(start)
        while left:
            left -= drop(connection, left)
    return Traffic(1, size, time.monotonic() - began)


def drop(connection: socket.socket, most: int, flags: int = 0) -> int:
    """Throw away what has arrived, up to a number of bytes; how many there were comes back.

    Raises:
        ConnectionError: the other side has ended the connection.
    """
    count = connection.recv_into(_WASTE, min(most, len(_WASTE)), socket.MSG_TRUNC | flags)
    if not count:
        raise ConnectionError("the connection was ended")
    return count


class _Client:
    """A connection that goes through a script."""

    def __init__(self, connection: socket.socket, script: Sequence[Exchange]) -> None:
        self.socket = connection
        self.received = 0
        self._script: Iterator[Exchange] = cycle(script)
        self._ends: list[int] = []
        self._low_water = 1

    @property
    def is_done(self) -> bool:
        return not self._ends

    def send_next(self) -> int:
        """Ask for what comes next in the script; how many requests that are comes back."""
        exchange = next(self._script)
        self._ends.append((self._ends[-1] if self._ends else self.received) + exchange.answer_bytes)
        self.socket.sendall(exchange.sent)
        return exchange.requests

    def receive(self) -> int:
        """Throw away what has arrived; how many exchanges have ended with it comes back."""
        self.received += drop(self.socket, len(_WASTE))
        if self.received > self._ends[-1]:
            raise ConnectionError("more was answered than before")
        ended = sum(end <= self.received for end in self._ends)
        del self._ends[:ended]
        self._wake_at(min(self._ends[0] - self.received, _ENOUGH_BYTES) if self._ends else 1)
        return ended

    def _wake_at(self, low_water: int) -> None:
        """Have the socket be readable when it has so many bytes."""
        if low_water != self._low_water:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 80), _PATIENCE_SECONDS)


def _content_length(head: bytes) -> int:
    found = _CONTENT_LENGTH.search(head)
    if not found or head[9:10] != b"2":
        raise ConnectionError(f"not what was asked for: {head[:200]!r}")
    return int(found[1])


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionError("the connection was ended")
    return data
