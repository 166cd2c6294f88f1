"""A server of one image that responds correctly, except for the one mistake that a test adds."""

from __future__ import annotations

import hashlib
import http.server
import socket
import struct
import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IMAGE = hashlib.shake_128(b"image").digest(300_000)
ETAG = '"correct"'
PATH = "/byid/x/4/x86_64/full.iso"


@attrs.frozen
class Reply:
    """The response to one request.

    Args:
        connection: number of the connection that it came on, from 0.
        number: of the request, from 0.
        method: of the request.
        is_digest: the request is for the digest.
        status: status code.
        fields: header fields.
        body: content; not sent for HEAD.
        cut: how the connection ends within the body: ``close`` or ``reset``; empty: it does not.
        leaves: the connection is closed after the body, without ``Connection: close``.
        garbage: sent instead of the response.
        waits_seconds: before anything is sent; stopping the server ends the wait.
    """

    connection: int
    number: int
    method: str
    is_digest: bool
    status: int
    fields: dict[str, str]
    body: bytes
    cut: str = ""
    leaves: bool = False
    garbage: bytes = b""
    waits_seconds: float = 0


Mistake: TypeAlias = "Callable[[Reply], Reply]"


@attrs.define
class WrongServer:
    """A server in a thread."""

    mistake: Mistake
    replies: list[Reply] = attrs.field(factory=list)
    url: str = ""
    ended: threading.Event = attrs.field(factory=threading.Event)

    def reply(self, connection: int, method: str, path: str, range_field: str | None) -> Reply:
        """Return the correct response with the mistake applied."""
        number, is_digest = len(self.replies), path.endswith(".sha256")
        status, fields, body = 200, {"ETag": ETAG}, IMAGE
        if is_digest:
            body = f"{hashlib.sha256(IMAGE).hexdigest()}  full.iso\n".encode()
        if range_field is not None:
            first, last = map(int, range_field.removeprefix("bytes=").split("-"))
            status, body = 206, IMAGE[first : last + 1]
            fields["Content-Range"] = f"bytes {first}-{last}/{len(IMAGE)}"
        fields["Content-Length"] = str(len(body))
        made = self.mistake(Reply(connection, number, method, is_digest, status, fields, body))
        self.replies.append(made)
        return made


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined on close

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect within a response."""


def _handler(server: WrongServer) -> type[http.server.BaseHTTPRequestHandler]:
    connections = count()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.number = next(connections)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def do_GET(self) -> None:
            reply = server.reply(self.number, self.command, self.path, self.headers["Range"])
            server.ended.wait(reply.waits_seconds)
            self.wfile.write(reply.garbage or self._head(reply))
            if reply.cut:
                self._cut(reply)
                return
            if self.command != "HEAD":
                self.wfile.write(reply.body)
            self.close_connection = reply.leaves

        do_HEAD = do_GET

        def _head(self, reply: Reply) -> bytes:
            lines = [f"{name}: {value}\r\n" for name, value in reply.fields.items()]
            return f"HTTP/1.1 {reply.status} X\r\n{''.join(lines)}\r\n".encode()

        def _cut(self, reply: Reply) -> None:
            if reply.method != "HEAD":
                self.wfile.write(reply.body[: len(reply.body) // 2])
            if reply.cut == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                socket.close(self.connection.detach())  # now: a later close would shut it down first
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    return Handler


@contextmanager
def serving(mistake: Mistake = lambda reply: reply) -> Iterator[WrongServer]:
    """Serve for the duration of the block."""
    server = WrongServer(mistake)
    http_server = _Server(("127.0.0.1", 0), _handler(server))
    server.url = f"http://127.0.0.1:{http_server.server_port}{PATH}"
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        http_server.shutdown()
        http_server.server_close()
        thread.join()
