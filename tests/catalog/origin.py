"""A real HTTP server in a thread, which answers as it is told and remembers what it was asked."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

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
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    promised: int | None = None
    hold: bool = False


@attrs.frozen
class Asked:
    """A request as it arrived."""

    target: str
    headers: Message


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined on close, so that no test leaves one behind

    def handle_error(self, *_: object) -> None:
        """Let clients go away in the middle of an answer: some are meant to."""


class Origin:
    """The server; answers of one path are given in order, the last one again and again."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._answers: dict[str, list[Answer]] = defaultdict(list)
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

    def serve(self, path: str, *answers: Answer) -> str:
        """Answer a path, without its query, and give its URL."""
        self._answers[path] += answers
        return self.url(path)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        answers = self._answers[asked.target.partition("?")[0]]
        if not answers:
            return Answer(status=404)
        return answers.pop(0) if len(answers) > 1 else answers[0]

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
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            promised = len(answer.body) if answer.promised is None else answer.promised
            if promised >= 0:
                self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(answer.body)
            if answer.hold:
                origin.held.set()
                origin.go_on.wait()
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
