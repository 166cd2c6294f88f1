"""Streamed content passes a socket in larger pieces than Twisted's: each waits for a turn of the reactor."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.tcp import Connection
from twisted.internet.threads import deferToThread

from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.connections import LimitedFactory
from image_service.server.web_api.messages import ApiRequest, ApiResponse
from image_service.server.web_api.resource import ApiResource, ApiSite
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from twisted.internet.epollreactor import EPollReactor

SIZE = 160 * 1024
"""A Unix socket takes some 208 KiB at once; Twisted reads at most 64 KiB and sends 128."""


@attrs.define
class OnePiece:
    """Content in one piece."""

    piece: bytes

    async def read(self) -> bytes:
        """Return the piece, then nothing."""
        piece, self.piece = self.piece, b""
        return piece

    def close(self) -> None:
        """Release nothing."""


@ensure_deferred
async def test_streamed_content_takes_one_turn_of_the_reactor(
    reactor: EPollReactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    sent: list[int] = []
    receive, send = Connection._dataReceived, Connection.writeSomeData

    def record_received(self: Connection, data: bytes) -> object:
        received.append(len(data))
        return receive(self, data)

    def record_sent(self: Connection, data: bytes) -> object:
        count = send(self, data)
        assert isinstance(count, int)
        sent.append(count)
        return count

    monkeypatch.setattr(Connection, "_dataReceived", record_received)
    monkeypatch.setattr(Connection, "writeSomeData", record_sent)
    has_head: Deferred[None] = Deferred()

    async def echo(request: ApiRequest) -> ApiResponse:
        assert request.content is not None
        has_head.callback(None)
        content = b""
        while piece := await request.content.read():
            content += piece
        return ApiResponse(fields=(("Content-Length", str(SIZE)),), stream=OnePiece(content))

    resource = ApiResource(RequestGuard(), echo, is_streamed=lambda *_: True)
    factory = LimitedFactory(ApiSite(resource, reactor, SIZE), reactor)
    port = reactor.listenUNIX(str(tmp_path / "socket"), factory)
    with socket.socket(socket.AF_UNIX) as client:
        await deferToThread(client.connect, str(tmp_path / "socket"))
        head = f"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SIZE}\r\nConnection: close\r\n\r\n"
        await deferToThread(client.sendall, head.encode())
        await has_head
        client.sendall(bytes(SIZE))  # while this thread does not read
        reply = await deferToThread(lambda: client.makefile("rb").read())
    assert reply.endswith(b"\r\n\r\n" + bytes(SIZE))
    assert max(received) == SIZE
    assert max(sent) >= SIZE  # Twisted may send the head with it
    await maybeDeferred(port.stopListening)
