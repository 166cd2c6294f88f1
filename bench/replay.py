"""A load generator beside wrk, for HEAD and for fixed sequences of ranges; plain HTTP only.

A generator on the same machine takes CPU time from the server, and the verifying client of the load test
takes more than the server itself. So requests are encoded beforehand, the length of each response is measured
once, and from then on ``recv(MSG_TRUNC)`` discards so many bytes in the kernel without copying them.
SO_RCVLOWAT keeps the kernel from waking this process before enough bytes, or all of them, have arrived.
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

_BUFFER = bytearray(16 * 1024 * 1024)
"""A buffer that is never written."""
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_TIMEOUT_SECONDS = 60
_LOW_WATER_BYTES = 1024 * 1024
"""Sixteen ranges of 64 KiB; the default receive buffer of kernels can grow to it."""


@attrs.frozen
class Exchange:
    """Requests that are sent together, pipelined, and the length of all their responses."""

    sent: bytes
    requests: int
    response_bytes: int


def request(url: str, method: str = "GET", first: int | None = None, length: int = 0) -> bytes:
    """Encode a request, for a range if it has a first byte."""
    parts = urlsplit(url)
    lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
    if first is not None:
        lines.append(f"Range: bytes={first}-{first + length - 1}")
    return "\r\n".join([*lines, "", ""]).encode()


def prepare(url: str, requests: Sequence[bytes]) -> tuple[Exchange, ...]:
    """Send each request once on one connection, and return them with the lengths of their responses.

    Raises:
        ConnectionError: a response is not 2xx.
    """
    with closing(_connect(url)) as connection, connection.makefile("rb", 1024 * 1024) as responses:
        found = []
        for each in requests:
            connection.sendall(each)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += _some(responses.readline())
            length = 0 if each.startswith(b"HEAD ") else _content_length(head)
            responses.read(length)
            found.append(Exchange(each, 1, len(head) + length))
    return tuple(found)


def pipelined(exchanges: Sequence[Exchange]) -> Exchange:
    """Combine exchanges into one that is sent together."""
    return Exchange(
        b"".join(each.sent for each in exchanges),
        sum(each.requests for each in exchanges),
        sum(each.response_bytes for each in exchanges),
    )


def replay(
    url: str,
    scripts: Sequence[Sequence[Exchange]],
    seconds: float = math.inf,
    *,
    ahead: int = 1,
    most: float = math.inf,
) -> Traffic:
    """Send the scripts again and again to one server; see `replay_at`."""
    return replay_at([(url, script) for script in scripts], seconds, ahead=ahead, most=most)


def replay_at(
    places: Sequence[tuple[str, Sequence[Exchange]]],
    seconds: float = math.inf,
    *,
    ahead: int = 1,
    most: float = math.inf,
) -> Traffic:
    """Send scripts again and again, one connection each, and wait for the last responses.

    Args:
        places: the server's URL and the exchanges of each client.
        seconds: no request is sent later.
        ahead: outstanding exchanges of a connection.
        most: no request is sent after this many.

    Raises:
        ConnectionError: a response differed in length from before, or is missing.
    """
    with ExitStack() as stack:
        clients = [_Client(stack.enter_context(closing(_connect(url))), script) for url, script in places]
        started_at = time.monotonic()
        sent = sum(client.send_next() for client in clients for _ in range(ahead))
        for client in _completed(clients):
            if time.monotonic() - started_at < seconds and sent < most:
                sent += client.send_next()
        elapsed = time.monotonic() - started_at
        return Traffic(sent, sum(client.received for client in clients), elapsed)


def _completed(clients: Sequence[_Client]) -> Iterator[_Client]:
    """Discard bytes as they arrive; yield a client for each of its exchanges that is complete."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        while selector.get_map():
            ready = selector.select(_TIMEOUT_SECONDS)
            if not ready:
                raise ConnectionError(f"no bytes for {_TIMEOUT_SECONDS} s")
            for key, _ in ready:
                client = key.data
                yield from repeat(client, client.receive())
                if client.is_done:
                    selector.unregister(client.socket)


def download(url: str) -> Traffic:
    """Read a whole image once, on a new connection; raises ConnectionError unless it is complete."""
    started_at = time.monotonic()
    with closing(_connect(url)) as connection:
        connection.sendall(request(url))
        start = b""
        while b"\r\n\r\n" not in start:
            start += _some(connection.recv(65536))
        head = start.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        size = len(head) + _content_length(head)
        left = size - len(start)
        while left:
            left -= discard(connection, left)
    return Traffic(1, size, time.monotonic() - started_at)


def discard(connection: socket.socket, most: int, flags: int = 0) -> int:
    """Discard bytes that have arrived, and return their number; raises ConnectionError at the end."""
    count = connection.recv_into(_BUFFER, min(most, len(_BUFFER)), socket.MSG_TRUNC | flags)
    if not count:
        raise ConnectionError("the server closed the connection")
    return count


class _Client:
    """A connection that sends a script."""

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
        """Send the next exchange of the script, and return its number of requests."""
        exchange = next(self._script)
        self._ends.append((self._ends[-1] if self._ends else self.received) + exchange.response_bytes)
        self.socket.sendall(exchange.sent)
        return exchange.requests

    def receive(self) -> int:
        """Discard bytes that have arrived, and return how many exchanges they completed."""
        self.received += discard(self.socket, len(_BUFFER))
        if self.received > self._ends[-1]:
            raise ConnectionError("a response is longer than before")
        completed = sum(end <= self.received for end in self._ends)
        del self._ends[:completed]
        self._wake_at(min(self._ends[0] - self.received, _LOW_WATER_BYTES) if self._ends else 1)
        return completed

    def _wake_at(self, low_water: int) -> None:
        """Make the socket readable when it has so many bytes."""
        if low_water != self._low_water:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT_SECONDS)


def _content_length(head: bytes) -> int:
    found = _CONTENT_LENGTH.search(head)
    if not found or head[9:10] != b"2":
        raise ConnectionError(f"unexpected response: {head[:200]!r}")
    return int(found[1])


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionError("the server closed the connection")
    return data
