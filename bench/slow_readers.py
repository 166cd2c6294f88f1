"""Many slow clients: whether all progress, what they cost, and how fast a new client is served meanwhile.

A reader reads 10 KiB per second and discards it in the kernel, on HTTPS without decrypting it: 10,000 clients
of the load test would slow the server on the same machine. The receive buffer is small, so that the bytes
that a reader does not read stay with the server.
"""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack, closing
from functools import cache
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from bench import processes
from bench.replay import discard, request
from bench.results import Target
from bench.servers import OPEN_FILES, SERVICE
from bench.study import Figure
from image_service.common.http.tls import client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from bench.servers import Server
    from bench.stage import Stage

READ_BYTES = 10 * 1024
_MEMORY_TARGETS_MIB = {"http": 128, "https": 512}
_JUDGED_READERS = 10_000
_SLICES_PER_SECOND = 10
_RECEIVE_BUFFER_BYTES = 32 * 1024  # half of it is the kernel's own
_CONNECTED_AT_ONCE = 500
_NEW_CLIENT_BYTES = 64 * 1024
_TIMEOUT_SECONDS = 60
_MAX_REFUSALS = 3
"""In a row: a server out of memory would delay each further attempt."""
_KIB = 1024
_MIB = _KIB * _KIB


def study_slow_readers(stage: Stage, *, scheme: str, count: int, seconds: int) -> Iterator[Figure]:
    """Connect so many readers to each server in turn, for some seconds."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES), hard))
    with ExitStack() as stack:
        for server in stage.start_servers(stack, "slow-readers"):
            if scheme in server.urls:
                yield from _study(server, scheme, count, seconds)


@attrs.define
class _Reader:
    """A client that has received the head of its response.

    Args:
        socket: below TLS.
        received: bytes.
        is_broken: the server closed the connection.
    """

    socket: socket.socket
    received: int = 0
    is_broken: bool = False

    def read(self) -> None:
        """Discard the bytes that are due, as far as they have arrived."""
        try:
            self.received += discard(self.socket, READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            self.is_broken = True


def _study(server: Server, scheme: str, count: int, seconds: int) -> Iterator[Figure]:
    url = server.urls[scheme]
    _new_client_ms(url)  # memory of the first request is not a cost of the readers
    idle, idle_sockets = server.memory_bytes(), processes.socket_bytes()
    with ExitStack() as stack:
        readers = _connect(stack, url, count)
        before = [reader.received for reader in readers]
        _read_on(readers, seconds / 2, url)
        halfway = [reader.received for reader in readers]
        latencies = _read_on(readers, seconds / 2, url)
        memory, sockets = server.memory_bytes(), processes.socket_bytes()
    judged = server.name == SERVICE
    strict = judged and count >= _JUDGED_READERS
    broken = count - len(readers) + sum(reader.is_broken for reader in readers)
    stuck = sum(reader.received == received for reader, received in zip(readers, halfway, strict=True))
    rates = [
        (reader.received - received) / seconds / _KIB
        for reader, received in zip(readers, before, strict=True)
    ]
    yield Figure(server.name, f"refused or broken, of {count:,}", "", [broken], _at_most(0, applies=judged))
    yield Figure(server.name, f"without progress, of {count:,}", "", [stuck], _at_most(0, applies=judged))
    yield Figure(server.name, "read by each reader", "KiB/s", rates)
    if memory is not None and idle is not None:
        target = _at_most(_MEMORY_TARGETS_MIB[scheme], applies=strict)
        yield Figure(server.name, "memory above idle (PSS)", "MiB", [(memory - idle) / _MIB], target)
    yield Figure(server.name, "kernel's socket memory, both ends", "MiB", [(sockets - idle_sockets) / _MIB])
    answered = [each for each in latencies if each < inf]
    unanswered = len(latencies) - len(answered)
    yield Figure(
        server.name,
        f"new clients without a response, of {len(latencies)}",
        "",
        [unanswered],
        _at_most(0, applies=judged),
    )
    if answered:
        yield Figure(server.name, "a new client's 64 KiB range", "ms", answered, _at_most(20, applies=strict))


def _connect(stack: ExitStack, url: str, count: int) -> list[_Reader]:
    """Connect readers; those that are connected read meanwhile."""
    readers: list[_Reader] = []
    for reader in _connected(stack, url, count):
        readers.append(reader)
        if len(readers) % _CONNECTED_AT_ONCE == 0:
            for other in readers:
                other.read()
    return readers


def _connected(stack: ExitStack, url: str, count: int) -> Iterator[_Reader]:
    """Yield readers that have received the head of a response; refused ones are left out."""
    whole, refused = request(url), 0
    for _ in range(count):
        if refused == _MAX_REFUSALS:
            return
        refused += 1
        try:
            connection = _open(url, _RECEIVE_BUFFER_BYTES)
            stack.callback(connection.close)
            connection.sendall(whole)
            if connection.recv(1024)[9:10] != b"2":
                continue
        except OSError:
            continue
        refused = 0
        plain = socket.socket(fileno=connection.detach())  # TLS is not needed any more
        yield _Reader(stack.enter_context(closing(plain)))


def _read_on(readers: Sequence[_Reader], seconds: float, url: str) -> list[float]:
    """Let each reader read once a second, in turn, and measure a new client after every slice of them.

    Returns:
        milliseconds of the new clients; infinite of one without a whole response.
    """
    latencies = []
    slices = max(round(seconds * _SLICES_PER_SECOND), 1)
    started_at = time.monotonic()
    for number in range(slices):
        for reader in readers[number % _SLICES_PER_SECOND :: _SLICES_PER_SECOND]:
            if not reader.is_broken:
                reader.read()
        try:
            latencies.append(_new_client_ms(url))
        except OSError:
            latencies.append(inf)
        time.sleep(max(started_at + (number + 1) / _SLICES_PER_SECOND - time.monotonic(), 0))
    return latencies


def _new_client_ms(url: str) -> float:
    """Return the time from the connect to the last byte of a range."""
    started_at = time.perf_counter()
    with closing(_open(url, None)) as connection:
        connection.sendall(request(url, first=0, length=_NEW_CLIENT_BYTES))
        with connection.makefile("rb") as response:
            while response.readline().strip():
                pass
            if len(response.read(_NEW_CLIENT_BYTES)) < _NEW_CLIENT_BYTES:
                raise ConnectionError(f"{url}: the response to a new client is incomplete")
    return (time.perf_counter() - started_at) * 1000


def _open(url: str, buffer_bytes: int | None) -> socket.socket:
    parts = urlsplit(url)
    plain = socket.socket()
    if buffer_bytes is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    plain.settimeout(_TIMEOUT_SECONDS)
    plain.connect((parts.hostname, parts.port))
    return _tls_context().wrap_socket(plain) if parts.scheme == "https" else plain


def _at_most(limit: float, *, applies: bool) -> Target:
    return Target(at_most=limit) if applies else Target()


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the context of all readers: making one takes longer than a handshake."""
    return client_context(insecure=True)
