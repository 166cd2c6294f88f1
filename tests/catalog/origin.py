"""A real HTTP server in a thread, which answers as it is told and remembers what it was asked."""

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
class Answer:
    """What one request gets.

    Args:
        body: what is sent.
        status: status code.
        headers: further fields.
        promised: Content-Length; None: that of the body, negative: none at all.
        hold: the connection stays open behind the body until ``Origin.go_on`` is set.
        hold_head: it does so before the head ends.
        drip: the body comes in pieces of so many bytes; 0: at once.
        drip_seconds: between two pieces.
        reset: the connection is reset behind the body, not closed.
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
class Asked:
    """A request as it arrived."""

    target: str
    headers: Message


Responder: TypeAlias = Answer | Callable[[Asked], Answer]


@attrs.define
class Resource:
    """A file as a sound server has it: with validators, ranges and preconditions (RFC 9110).

    Args:
        body: all of it.
        etag: its entity tag; empty: there is none.
        modified: its date, long past; empty: there is none.
        cuts: of one request after the other, how many bytes are sent before the connection is cut.
        drip: as of an answer.
    """

    body: bytes
    etag: str = '"1"'
    modified: str = "Sun, 06 Nov 1994 08:49:37 GMT"
    cuts: list[int] = attrs.field(factory=list)
    drip: int = 0

    def __call__(self, asked: Asked) -> Answer:
        """Answer one request."""
        fields = {"ETag": self.etag, "Last-Modified": self.modified}
        fields = {name: value for name, value in fields.items() if value}
        conditions = [
            (asked.headers["If-Match"], self.etag),
            (asked.headers["If-Unmodified-Since"], self.modified),
        ]
        if any(wanted is not None and wanted != value for wanted, value in conditions):
            return Answer(status=412)
        return self._cut(self._selected(asked.headers["Range"], fields))

    def _selected(self, wanted: str | None, fields: dict[str, str]) -> Answer:
        if wanted is None:
            return Answer(self.body, headers=fields, drip=self.drip)
        first, size = int(wanted.removeprefix("bytes=").removesuffix("-")), len(self.body)
        if first >= size:
            return Answer(status=416, headers={"Content-Range": f"bytes */{size}"})
        described = {"Content-Range": f"bytes {first}-{size - 1}/{size}"}
        return Answer(self.body[first:], status=206, headers={**fields, **described}, drip=self.drip)

    def _cut(self, answer: Answer) -> Answer:
        if not self.cuts:
            return answer
        return attrs.evolve(answer, body=answer.body[: self.cuts.pop(0)], promised=len(answer.body))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined on close, so that no test leaves one behind

    def handle_error(self, *_: object) -> None:
        """Let clients go away in the middle of an answer: some are meant to."""


class Origin:
    """The server; answers of one path are given in order, the last one again and again."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, list[Responder]] = defaultdict(list)
        self.asked: list[Asked] = []
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.scheme = "https" if context else "http"
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def serve(self, path: str, *answers: Responder) -> str:
        """Answer a path, without its query, and give its URL."""
        self.answers[path] += answers
        return self.url(path)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        answers = self.answers[asked.target.partition("?")[0]]
        if not answers:
            return Answer(status=404)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer if isinstance(answer, Answer) else answer(asked)

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(origin: Origin) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = origin.answer(Asked(self.path, self.headers))
            self.send_response_only(answer.status)
            for name, value in _fields(answer, self.date_time_string()):
                self.send_header(name, value)
            if answer.hold_head:
                self.flush_headers()
                origin.go_on.wait()
            self.end_headers()
            for piece in _pieces(answer):
                self.wfile.write(piece)
                if answer.drip:
                    origin.go_on.wait(answer.drip_seconds)
            if answer.hold:
                origin.held.set()
                origin.go_on.wait()
            if answer.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            self.close_connection = True

        def do_CONNECT(self) -> None:
            origin.asked.append(Asked(self.path, self.headers))
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


def _fields(answer: Answer, date: str) -> Iterator[tuple[str, str]]:
    if not answer.own_date:
        yield "Date", date
    yield from answer.headers.items()
    promised = len(answer.body) if answer.promised is None else answer.promised
    if promised >= 0:
        yield "Content-Length", str(promised)


def _pieces(answer: Answer) -> Iterator[bytes]:
    step = answer.drip or max(1, len(answer.body))
    yield from (answer.body[at : at + step] for at in range(0, len(answer.body), step))


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(65536):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[Origin]:
    """Serve for as long as the block lasts."""
    origin = Origin(context)
    thread = threading.Thread(target=origin.run)
    thread.start()
    try:
        yield origin
    finally:
        origin.close()
        thread.join()
