"""A server of one image that responds correctly, except for the mistake that a test adds."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.server.http.ranges import parse_range

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

PATH = "/images/live.iso"
ETAG = '"one"'
MODIFIED = "Sun, 06 Nov 1994 08:49:37 GMT"
_BOUNDARY = "boundary"


@attrs.frozen
class Served:
    """The response to one request.

    Args:
        method: of the request.
        number: of the request, from 0.
        connection: of the request, from 0.
        range_field: of the request; None: it has none.
        status: status code.
        fields: header fields.
        body: content; not sent for HEAD.
        waits_seconds: before anything is sent; stopping the server ends the wait.
        drip: bytes that are sent at once, then a pause of a tenth of a second; 0: all.
    """

    method: str
    number: int
    connection: int
    range_field: str | None
    status: int
    fields: dict[str, str]
    body: bytes = attrs.field(repr=False)
    waits_seconds: float = 0
    drip: int = 0

    def without(self, *names: str) -> Served:
        """Return it without some fields."""
        return attrs.evolve(self, fields={n: value for n, value in self.fields.items() if n not in names})

    def having(self, **fields: str) -> Served:
        """Return it with other fields; an underscore stands for a hyphen."""
        renamed = {name.replace("_", "-"): value for name, value in fields.items()}
        return attrs.evolve(self, fields={**self.fields, **renamed})

    def containing(self, body: bytes) -> Served:
        """Return it with another content of the right length."""
        return attrs.evolve(self, body=body).having(Content_Length=str(len(body)))


Mistake: TypeAlias = Callable[[Served], Served]


def respond(image: bytes, range_field: str | None) -> tuple[int, dict[str, str], bytes]:
    """Return status, fields and content of a correct response."""
    size = len(image)
    fields = {
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
        "ETag": ETAG,
        "Last-Modified": MODIFIED,
    }
    ranges = None if range_field is None else parse_range(range_field, size)
    if ranges is None:
        return 200, fields | {"Content-Length": str(size)}, image
    if not ranges:
        return 416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"}, b""
    if len(ranges) == 1:
        ((first, stop),) = ranges
        fields["Content-Range"] = f"bytes {first}-{stop - 1}/{size}"
        return 206, fields | {"Content-Length": str(stop - first)}, image[first:stop]
    body = b"".join(
        f"\r\n--{_BOUNDARY}\r\nContent-Range: bytes {first}-{stop - 1}/{size}\r\n\r\n".encode()
        + image[first:stop]
        for first, stop in ranges
    )
    body += f"\r\n--{_BOUNDARY}--\r\n".encode()
    fields["Content-Type"] = f"multipart/byteranges; boundary={_BOUNDARY}"
    return 206, fields | {"Content-Length": str(len(body))}, body


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined on close

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect within a response."""


@attrs.define
class _State:
    image: bytes = attrs.field(repr=False)
    mistake: Mistake
    requests: int = 0
    connections: int = 0
    ended: threading.Event = attrs.field(factory=threading.Event)


def _handler(state: _State) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.number = state.connections
            state.connections += 1

        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            served = state.mistake(
                Served(
                    self.command,
                    state.requests,
                    self.number,
                    wanted,
                    *respond(state.image, None if self.command == "HEAD" else wanted),
                )
            )
            state.requests += 1
            state.ended.wait(served.waits_seconds)
            self.send_response_only(served.status)
            for name, value in served.fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = "Content-Length" not in served.fields
            if self.command != "HEAD":
                self._write(served)

        do_HEAD = do_GET

        def _write(self, served: Served) -> None:
            step = served.drip or max(1, len(served.body))
            for at in range(0, len(served.body), step):
                self.wfile.write(served.body[at : at + step])
                if served.drip and state.ended.wait(0.1):
                    return

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving(
    image: bytes,
    mistake: Mistake = lambda served: served,
    context: ssl.SSLContext | None = None,
    path: str = PATH,
) -> Iterator[str]:
    """Serve an image for the duration of the block; yield its URL."""
    state = _State(image, mistake)
    server = _Server(("127.0.0.1", 0), _handler(state))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}{path}"
    finally:
        state.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
