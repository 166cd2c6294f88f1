"""Many clients that read slowly: whether all get on, what they cost, and how a new client fares beside them.

A reader takes 10 KiB a second and throws it away in the kernel, on HTTPS without decrypting it: what is
looked at is the server. Its receive buffer is small, so that what it does not take stays with the server.
"""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from bench import processes
from bench.replay import drop, request
from bench.results import Target
from bench.servers import OPEN_FILES, SERVICE, trusting
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.servers import Server
    from bench.stage import Stage

READ_BYTES = 10 * 1024
_MEMORY_TARGETS_MIB = {"http": 128, "https": 512}
_JUDGED_READERS = 10_000
_SLICES_PER_SECOND = 10
_RECEIVE_BUFFER_BYTES = (
    32 * 1024
)  # of which the kernel counts half as its own: room for what is read at a time
_CONNECTED_AT_ONCE = 500
_NEW_CLIENT_BYTES = 64 * 1024
_PATIENCE_SECONDS = 60
_HOPELESS = 3
"""Readers refused one after another."""
_KIB = 1024
_MIB = _KIB * _KIB


def study_slow_readers(scheme: str, index: int, stage: Stage) -> Iterator[Figure]:
    """Have readers connect to each server in turn; ``index`` says which of the effort's numbers of them."""
    count = stage.effort.readers[index]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES), hard))
    with ExitStack() as stack:
        for server in stage.start_servers(stack):
            if scheme in server.urls:
                yield from _study(server, scheme, count, stage.effort.reader_seconds)


@attrs.define
class _Reader:
    """A client that has read the head of its answer.

    Args:
        socket: below TLS, if there is TLS.
        taken: bytes.
        is_broken: whether the server has ended the connection.
    """

    socket: socket.socket
    taken: int = 0
    is_broken: bool = False

    def take(self) -> None:
        """Take what is due, as far as it has arrived."""
        try:
            self.taken += drop(self.socket, READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            self.is_broken = True


def _study(server: Server, scheme: str, count: int, seconds: int) -> Iterator[Figure]:
    url = server.urls[scheme]
    _new_client_ms(url)  # what the first request makes is not what readers cost
    idle, idle_sockets = server.memory_bytes(), processes.socket_bytes()
    with ExitStack() as stack:
        readers = _connect(stack, url, count)
        before = [reader.taken for reader in readers]
        _read_on(readers, seconds / 2, url)
        halfway = [reader.taken for reader in readers]
        latencies = _read_on(readers, seconds / 2, url)
        memory, sockets = server.memory_bytes(), processes.socket_bytes()
    judged = server.name == SERVICE
    strict = judged and count >= _JUDGED_READERS
    broken = count - len(readers) + sum(reader.is_broken for reader in readers)
    stuck = sum(reader.taken == taken for reader, taken in zip(readers, halfway, strict=True))
    rates = [(reader.taken - taken) / seconds / _KIB for reader, taken in zip(readers, before, strict=True)]
    yield Figure(server.name, "refused or broken", "", [broken], _at_most(0, applies=judged))
    yield Figure(server.name, "without progress", "", [stuck], _at_most(0, applies=judged))
    yield Figure(server.name, "taken by each reader", "KiB/s", rates)
    if memory is not None and idle is not None:
        target = _at_most(_MEMORY_TARGETS_MIB[scheme], applies=strict)
        yield Figure(server.name, "memory above idle (PSS)", "MiB", [(memory - idle) / _MIB], target)
    yield Figure(server.name, "kernel's socket memory, both ends", "MiB", [(sockets - idle_sockets) / _MIB])
    yield Figure(server.name, "a new client's 64 KiB range", "ms", latencies, _at_most(20, applies=strict))


def _connect(stack: ExitStack, url: str, count: int) -> list[_Reader]:
    """Give readers; those who are there already go on reading meanwhile."""
    readers: list[_Reader] = []
    for reader in _connected(stack, url, count):
        readers.append(reader)
        if len(readers) % _CONNECTED_AT_ONCE == 0:
            for other in readers:
                other.take()
    return readers


def _connected(stack: ExitStack, url: str, count: int) -> Iterator[_Reader]:
    """Connect, ask for the whole image, and read the head of the answer; who is refused is left out.

    So are all others once several in a row were: a server out of memory would be waited for again and again.
    """
    asked, refused = request(url), 0
    for _ in range(count):
        if refused == _HOPELESS:
            return
        refused += 1
        try:
            connection = _open(url, _RECEIVE_BUFFER_BYTES)
            stack.callback(connection.close)
            connection.sendall(asked)
            if connection.recv(1024)[9:10] != b"2":
                continue
        except OSError:
            continue
        refused = 0
        plain = socket.socket(fileno=connection.detach())  # of TLS nothing is needed any more
        yield _Reader(stack.enter_context(closing(plain)))


def _read_on(readers: Sequence[_Reader], seconds: float, url: str) -> list[float]:
    """Let each reader take its due once a second, in turn; a new client after every slice of them.

    Returns:
        milliseconds that each of the new clients took.
    """
    latencies = []
    slices = max(round(seconds * _SLICES_PER_SECOND), 1)
    began = time.monotonic()
    for number in range(slices):
        for reader in readers[number % _SLICES_PER_SECOND :: _SLICES_PER_SECOND]:
            if not reader.is_broken:
                reader.take()
        latencies.append(_new_client_ms(url))
        time.sleep(max(began + (number + 1) / _SLICES_PER_SECOND - time.monotonic(), 0))
    return latencies


def _new_client_ms(url: str) -> float:
    """Time from the connect to the last byte of a range."""
    began = time.perf_counter()
    with closing(_open(url, None)) as connection:
        connection.sendall(request(url, first=0, length=_NEW_CLIENT_BYTES))
        with connection.makefile("rb") as answer:
            while answer.readline().strip():
                pass
            if len(answer.read(_NEW_CLIENT_BYTES)) < _NEW_CLIENT_BYTES:
                raise ConnectionError(f"{url}: a new client's answer ended too early")
    return (time.perf_counter() - began) * 1000


def _open(url: str, buffer_bytes: int | None) -> socket.socket:
    parts = urlsplit(url)
    plain = socket.socket()
    if buffer_bytes is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    plain.settimeout(_PATIENCE_SECONDS)
    plain.connect((parts.hostname, parts.port))
    return trusting().wrap_socket(plain) if parts.scheme == "https" else plain


def _at_most(limit: float, *, applies: bool) -> Target:
    return Target(at_most=limit) if applies else Target()
