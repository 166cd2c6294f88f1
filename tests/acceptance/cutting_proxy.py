"""A proxy that falls silent within responses to GET, as a cut cable does, a given number of times."""

from __future__ import annotations

import re
import socketserver
import threading
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BYTES = 16 * 1024
_HEAD = re.compile(rb"(?P<method>\S+) (?P<target>\S+) HTTP/1.1\r\n(?P<fields>(?:.+\r\n)*)\r\n")


@attrs.define
class CuttingProxy:
    """What passed through.

    Args:
        server: whose responses it passes on.
        cuts: how many bytes of content pass before each silence, which lasts until the client closes.
        requests: header fields of the GETs, in order.
        statuses: of the responses to them.
        content: that was sent, by its offset.
    """

    server: str
    cuts: list[int]
    requests: list[dict[str, str]] = attrs.field(factory=list, init=False)
    statuses: list[int] = attrs.field(factory=list, init=False)
    content: bytearray = attrs.field(factory=bytearray, init=False)
    port: int = attrs.field(default=0, init=False)

    def answer(self, request: socketserver.StreamRequestHandler) -> bool:
        """Pass a request and its response on; return True if the connection may have another request."""
        head = b"".join(iter(request.rfile.readline, b"\r\n")) + b"\r\n"
        found = _HEAD.fullmatch(head)
        if found is None:  # the client has closed
            return False
        lines = found["fields"].decode("latin-1").splitlines()
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        method, target = found["method"].decode(), found["target"].decode()
        with closing(HTTPConnection(urlsplit(self.server).netloc)) as connection:
            connection.request(method, target, headers=fields)
            with connection.getresponse() as response:
                shown = "".join(f"{name}: {value}\r\n" for name, value in response.getheaders())
                line = f"HTTP/1.1 {response.status} {response.reason}\r\n"
                request.wfile.write(f"{line}{shown}\r\n".encode("latin-1"))
                if method != "GET":
                    return True
                self.requests.append(fields)
                self.statuses.append(response.status)
                return self._send(response, request)

    def _send(self, response: HTTPResponse, request: socketserver.StreamRequestHandler) -> bool:
        """Send content, up to the next cut; return True if all was sent."""
        begin = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", "bytes 0-"))
        assert begin
        offset, left = int(begin[1]), self.cuts.pop(0) if self.cuts else None
        while block := response.read(_BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES)):
            request.wfile.write(block)
            self.content[offset : offset + len(block)] = block
            offset += len(block)
            if left is not None:
                left -= len(block)
        if left == 0:
            request.rfile.read(1)  # until the client closes
        return left is None


@contextmanager
def cutting(server: str, cuts: list[int]) -> Iterator[CuttingProxy]:
    """Run a proxy until the block ends."""
    proxy = CuttingProxy(server, cuts)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                while proxy.answer(self):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        proxy.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown()
            thread.join()
