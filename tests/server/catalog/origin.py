"""A real HTTP server in a thread, with scripted replies, that records its requests."""

from __future__ import annotations

import contextlib
import http.server
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from email.message import Message


@attrs.frozen
class Reply:
    """The reply to one request.

    Args:
        body: what is sent.
        status: status code.
        headers: further fields.
        promised: Content-Length; None: that of the body, negative: none at all.
        hold: the connection stays open after the body until ``Origin.released`` is set.
        hold_head: likewise, before the head ends.
        drip: the body comes in pieces of so many bytes; 0: at once.
        drip_seconds: between two pieces.
        reset: the connection is reset after the body, not closed.
        own_date: the fields have a Date.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    promised: int | None = None
    hold: bool = False
    hold_head: bool = False
    drip: int = 0
    drip_seconds: float = 0.001
    reset: bool = False
    own_date: bool = False


@attrs.frozen
class ReceivedRequest:
    """A request as it arrived."""

    target: str
    headers: Message
    method: str = "GET"


Responder: TypeAlias = Reply | Callable[[ReceivedRequest], Reply]


@attrs.define
class Resource:
    """A file with validators, ranges and preconditions (RFC 9110).

    Args:
        body: all of it.
        etag: entity tag; empty: none.
        modified: Last-Modified, long past; empty: none.
        cuts: for each of the next requests, the bytes that are sent before the connection is closed.
        drip: as of a reply.
    """

    body: bytes
    etag: str = '"1"'
    modified: str = "Sun, 06 Nov 1994 08:49:37 GMT"
    cuts: list[int] = attrs.field(factory=list)
    drip: int = 0

    def __call__(self, request: ReceivedRequest) -> Reply:
        """Return the reply to a request."""
        fields = {"ETag": self.etag, "Last-Modified": self.modified}
        fields = {name: value for name, value in fields.items() if value}
        conditions = [
            (request.headers["If-Match"], self.etag),
            (request.headers["If-Unmodified-Since"], self.modified),
        ]
        if any(wanted is not None and wanted != value for wanted, value in conditions):
            return Reply(status=412)
        return self._cut(self._selected(request.headers["Range"], fields))

    def _selected(self, wanted: str | None, fields: dict[str, str]) -> Reply:
        if wanted is None:
            return Reply(self.body, headers=fields, drip=self.drip)
        first_text, _, last_text = wanted.removeprefix("bytes=").partition("-")
        first, size = int(first_text), len(self.body)
        if first >= size:
            return Reply(status=416, headers={"Content-Range": f"bytes */{size}"})
        last = min(int(last_text or size), size - 1)
        described = {"Content-Range": f"bytes {first}-{last}/{size}"}
        part = self.body[first : last + 1]
        return Reply(part, status=206, headers={**fields, **described}, drip=self.drip)

    def _cut(self, reply: Reply) -> Reply:
        if not self.cuts:
            return reply
        return attrs.evolve(reply, body=reply.body[: self.cuts.pop(0)], promised=len(reply.body))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined on close, so that no test leaves one behind
    request_queue_size = 128  # a connection beyond it is tried again a second later

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect in the middle of a reply."""


class Origin:
    """The server; the replies of a path are sent in order, the last one repeatedly."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.replies: dict[str, list[Responder]] = defaultdict(list)
        self.requests: list[ReceivedRequest] = []
        self.holding = threading.Event()
        self.released = threading.Event()
        self.scheme = "https" if context else "http"
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def serve(self, path: str, *replies: Responder) -> str:
        """Script the replies of a path, without its query; return its URL."""
        self.replies[path] += replies
        return self.url(path)

    def reply(self, request: ReceivedRequest) -> Reply:
        self.requests.append(request)
        replies = self.replies[request.target.partition("?")[0]]
        if not replies:
            return Reply(status=404)
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply if isinstance(reply, Reply) else reply(request)

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(origin: Origin) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            reply = origin.reply(ReceivedRequest(self.path, self.headers, self.command))
            self.send_response_only(reply.status)
            for name, value in _fields(reply, self.date_time_string()):
                self.send_header(name, value)
            if reply.hold_head:
                self.flush_headers()
                origin.released.wait()
            self.end_headers()
            for piece in () if self.command == "HEAD" else _pieces(reply):
                self.wfile.write(piece)
                if reply.drip:
                    origin.released.wait(reply.drip_seconds)
            if reply.hold:
                origin.holding.set()
                origin.released.wait()
            if reply.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            self.close_connection = True

        do_HEAD = do_POST = do_DELETE = do_GET

        def do_CONNECT(self) -> None:
            origin.requests.append(ReceivedRequest(self.path, self.headers))
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                self.send_response(200)
                self.end_headers()
                back = threading.Thread(target=_pump, args=(upstream, self.connection))
                back.start()
                _pump(self.connection, upstream)
                back.join()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _fields(reply: Reply, date: str) -> Iterator[tuple[str, str]]:
    if not reply.own_date:
        yield "Date", date
    yield from reply.headers.items()
    promised = len(reply.body) if reply.promised is None else reply.promised
    if promised >= 0:
        yield "Content-Length", str(promised)


def _pieces(reply: Reply) -> Iterator[bytes]:
    step = reply.drip or max(1, len(reply.body))
    yield from (reply.body[at : at + step] for at in range(0, len(reply.body), step))


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(65536):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[Origin]:
    """Run a server within the block."""
    origin = Origin(context)
    thread = threading.Thread(target=origin.run)
    thread.start()
    try:
        yield origin
    finally:
        origin.close()
        thread.join()
