"""A client driven by hand, and a strict parser of responses."""

from __future__ import annotations

import re
import socket
import ssl
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from tests.server.transport.reactor_turns import SETTLED_TURNS, turns, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IReactorTime

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]+")
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([ -~]*)")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time
_RECEIVE_BYTES = 1024 * 1024
_SEND_BYTES = 64 * 1024  # TLS takes all of a piece or nothing


@attrs.frozen
class Answer:
    """A response as received."""

    status: int
    fields: dict[str, str]
    body: bytes = attrs.field(repr=False)

    @property
    def closes(self) -> bool:
        """True if the server announces the close of the connection."""
        return self.fields.get("connection") == "close"


def split_head(stream: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, fields and rest of a stream; fails on whatever RFC 9112 does not allow."""
    head, end, rest = stream.partition(b"\r\n\r\n")
    assert end, f"no complete head: {stream[:200]!r}"
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    assert status, f"not a status line: {first!r}"
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD_LINE.fullmatch(line)
        assert field, f"not a field line: {line!r}"
        name = field[1].decode().lower()
        assert name not in fields, f"two fields {name}"
        fields[name] = field[2].decode()
    return int(status[1]), fields, rest


def split_answers(stream: bytes, methods: Sequence[str] = ()) -> list[Answer]:
    """Return the responses that a stream consists of; none may be incomplete.

    Args:
        stream: everything received.
        methods: of the requests, if not all are GET.
    """
    answers: list[Answer] = []
    while stream:
        status, fields, stream = split_head(stream)
        method = methods[len(answers)] if len(answers) < len(methods) else "GET"
        length = 0 if method == "HEAD" or status in {204, 304} else int(fields["content-length"])
        assert len(stream) >= length, f"{len(stream)} of {length} bytes"
        answers.append(Answer(status, fields, stream[:length]))
        stream = stream[length:]
    return answers


@attrs.define(eq=False)
class Client:
    """One connection to the server; it reads only when a method says so.

    Args:
        reactor: turns while the client waits.
        socket: connected, not blocking; TLS or plain.
    """

    reactor: IReactorTime
    socket: socket.socket
    _received: bytearray = attrs.field(factory=bytearray, init=False)

    @property
    def port(self) -> int:
        """The client's own."""
        port: int = self.socket.getsockname()[1]
        return port

    async def handshake(self) -> None:
        """Complete the TLS handshake."""
        connection = self.socket
        assert isinstance(connection, ssl.SSLSocket)

        def done() -> bool:
            try:
                connection.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            return True

        await until(self.reactor, done)

    def send_some(self, data: bytes | memoryview) -> int:
        """Send a piece and return its bytes; 0 if the kernel accepts nothing now."""
        try:
            return self.socket.send(data[:_SEND_BYTES])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    async def send(self, data: bytes) -> None:
        """Send everything."""
        rest = memoryview(data)
        while rest:
            count = self.send_some(rest)
            rest = rest[count:]
            if not count:
                await turns(self.reactor, 1)

    async def send_until_blocked(self, data: bytes) -> int:
        """Send until the server has stopped reading and the kernel's buffers are full; return the bytes."""
        rest = memoryview(data)
        refused = 0
        while rest and refused < SETTLED_TURNS:
            count = self.send_some(rest)
            rest = rest[count:]
            refused = 0 if count else refused + 1
            if refused:
                await turns(self.reactor, 1)
        return len(data) - len(rest)

    async def send_in_pieces(self, pieces: Sequence[bytes]) -> None:
        """Send pieces that the server receives separately."""
        for piece in pieces:
            await self.send(piece)
            await turns(self.reactor, 2)

    def receive_some(self, limit: int = _RECEIVE_BYTES) -> bytes | None:
        """Receive what is there; None: nothing yet; empty: the server has closed its side.

        Raises:
            ConnectionResetError: the connection was reset.
            ssl.SSLEOFError: it ended without the closing alert of TLS.
        """
        try:
            return self.socket.recv(limit)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLZeroReturnError:  # the closing alert, where our own went before
            return b""

    async def _receive_more(self) -> bool:
        received: list[bytes] = []

        def some() -> bool:
            data = self.receive_some()
            if data is not None:
                received.append(data)
            return data is not None

        await until(self.reactor, some)
        self._received += received[0]
        return bool(received[0])

    async def receive(self, count: int) -> bytes:
        """Receive exactly `count` bytes."""
        while len(self._received) < count:
            assert await self._receive_more(), f"the end after {len(self._received)} of {count} bytes"
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def read_until_close(self) -> bytes:
        """Receive until the server closes its side."""
        while await self._receive_more():
            pass
        taken = bytes(self._received)
        self._received.clear()
        return taken

    async def read_until_abort(self) -> bytes:
        """Receive until the connection is aborted; an orderly close fails."""
        try:
            while await self._receive_more():
                pass
        except (ConnectionResetError, ssl.SSLEOFError):
            return bytes(self._received)
        raise AssertionError("the connection ended in order")

    async def read_to_end(self) -> bytes:
        """Receive until the connection is closed or aborted."""
        with suppress(ConnectionResetError, ssl.SSLEOFError):
            while await self._receive_more():
                pass
        return bytes(self._received)

    async def answers(self, methods: Sequence[str] = ()) -> list[Answer]:
        """Receive until the server closes its side, and return the responses."""
        return split_answers(await self.read_until_close(), methods)

    async def answer(self, method: str = "GET") -> Answer:
        """Receive one response."""
        while b"\r\n\r\n" not in self._received:
            assert await self._receive_more(), f"the end within a head: {bytes(self._received)!r}"
        status, fields, rest = split_head(bytes(self._received))
        length = 0 if method == "HEAD" else int(fields["content-length"])
        body_at = len(self._received) - len(rest)
        return Answer(status, fields, (await self.receive(body_at + length))[body_at:])

    async def ask(self, target: str, *fields: str, method: str = "GET") -> Answer:
        """Send a request and receive its response."""
        await self.send(request(target, *fields, method=method))
        return await self.answer(method)

    async def is_silent(self) -> bool:
        """Return True if the connection stays open and silent for some turns."""
        await turns(self.reactor)
        return not self._received and self.receive_some() is None

    def finish_sending(self) -> None:
        """Close the sending side, like ``nc`` at the end of its input."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close in order."""
        self.socket.close()

    def reset(self) -> None:
        """Reset the connection."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.close()

    def error(self) -> int:
        """Return the connection's pending error; 0 if no reset was received."""
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def request(target: str, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    """Render a request head, with a Host unless the version is 1.0."""
    lines = [f"{method} {target} HTTP/{version}", *(["Host: x"] if version == "1.1" else []), *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")
