"""An object store that checks no signatures: euca2ools signs requests to S3 by version 2."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen
class OpenStore:
    """A store.

    Args:
        port: on 127.0.0.1.
        objects: by the paths of their URLs, bucket first.
    """

    port: int
    objects: dict[str, bytes]


class _Handler(BaseHTTPRequestHandler):
    objects: dict[str, bytes]

    @property
    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def do_GET(self) -> None:
        is_bucket = "/" not in self._name
        body = b"" if is_bucket else self.objects.get(self._name)
        self._answer(404 if body is None else 200, body or b"", etag_of=body)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[self._name] = body
        self._answer(200, etag_of=body)

    def do_DELETE(self) -> None:
        self.objects.pop(self._name, None)
        self._answer(204)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, status: int, body: bytes = b"", *, etag_of: bytes | None = None) -> None:
        self.send_response(status)
        if etag_of is not None:
            self.send_header("ETag", f'"{hashlib.md5(etag_of, usedforsecurity=False).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running_open_store() -> Iterator[OpenStore]:
    """Run a store until the block ends."""
    objects: dict[str, bytes] = {}
    handler = type("Handler", (_Handler,), {"objects": objects})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield OpenStore(server.server_address[1], objects)
        finally:
            server.shutdown()
            thread.join()
