from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.http import HTTPChannel

from image_service.core.errors import StoreFailed
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.messages import ApiRequest, ApiResponse
from image_service.server.web_api.resource import ApiResource, ApiSite
from image_service.server.web_api.response_content import STALL_SECONDS
from tests.server.web_api.transports import RecordingTransport

if TYPE_CHECKING:
    from tests.conftest import LoggedFailures

FIELDS = (("Content-Type", "text/x"), ("Content-Length", "9"), ("Cache-Control", "private"))
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Pieces:
    """A stream of which each read is answered by the test."""

    def __init__(self) -> None:
        self.reads: list[Deferred[bytes]] = []
        self.is_closed = False

    async def read(self) -> bytes:
        self.reads.append(Deferred())
        return await self.reads[-1]

    def close(self) -> None:
        self.is_closed = True


class Sending:
    """A request whose response is streamed."""

    def __init__(self, request: bytes = GET) -> None:
        self.pieces = Pieces()
        self.clock = Clock()
        self.transport = RecordingTransport()
        channel = HTTPChannel()
        channel.site = ApiSite(ApiResource(RequestGuard(), self.respond), self.clock, 0)  # type: ignore[attr-defined]
        channel.requestFactory = channel.site.requestFactory  # type: ignore[attr-defined]
        channel.makeConnection(self.transport)
        channel.dataReceived(request)
        self.channel = channel

    async def respond(self, request: ApiRequest) -> ApiResponse:
        self.request = request
        return ApiResponse(206, fields=FIELDS, stream=self.pieces)

    @property
    def body(self) -> bytes:
        return self.transport.written.partition(b"\r\n\r\n")[2]

    def answer(self, block: bytes) -> None:
        self.pieces.reads[-1].callback(block)


def test_content_is_sent_piece_by_piece() -> None:
    sending = Sending()
    sending.answer(b"first")
    assert sending.body == b"first"
    sending.answer(b"last")
    sending.answer(b"")
    assert sending.body == b"firstlast"
    head = sending.transport.written.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[0] == b"HTTP/1.1 206 Partial Content"
    assert sorted(line for line in head[1:] if not line.startswith(b"Date: ")) == [
        b"Cache-Control: private",
        b"Content-Length: 9",
        b"Content-Type: text/x",
    ]
    assert not sending.request.is_head
    sending.channel.dataReceived(GET)
    assert len(sending.pieces.reads) == 4  # the connection is used again


def test_head_has_no_content() -> None:
    sending = Sending(GET.replace(b"GET", b"HEAD"))
    assert (sending.body, sending.pieces.reads) == (b"", [])
    assert sending.request.is_head
    assert b"Content-Length: 9" in sending.transport.written


def test_nothing_is_read_while_the_client_takes_nothing() -> None:
    sending = Sending()
    sending.channel.pauseProducing()
    sending.answer(b"first")
    assert len(sending.pieces.reads) == 1
    sending.clock.advance(STALL_SECONDS - 1)
    sending.channel.resumeProducing()
    assert len(sending.pieces.reads) == 2
    sending.clock.advance(STALL_SECONDS)
    assert not sending.transport.aborted


def test_client_that_takes_nothing_for_long_is_disconnected() -> None:
    sending = Sending()
    sending.channel.pauseProducing()
    sending.answer(b"first")
    sending.clock.advance(STALL_SECONDS)
    assert sending.transport.aborted


def test_failed_read_aborts_the_connection(logged_failures: LoggedFailures) -> None:
    sending = Sending()
    sending.answer(b"first")
    sending.pieces.reads[-1].errback(StoreFailed("the bucket is gone"))
    assert sending.transport.aborted
    assert sending.body == b"first"
    assert logged_failures.flush() == []


def test_bug_is_logged(logged_failures: LoggedFailures) -> None:
    sending = Sending()
    sending.pieces.reads[-1].errback(ZeroDivisionError())
    assert sending.transport.aborted
    assert len(logged_failures.flush(ZeroDivisionError)) == 1


def test_client_that_leaves_cancels_the_read() -> None:
    sending = Sending()
    sending.transport.lose(sending.channel)
    assert sending.pieces.reads[0].called
    assert sending.clock.getDelayedCalls() == []
    assert sending.pieces.is_closed


def test_content_is_closed_when_a_client_leaves_that_takes_nothing() -> None:
    sending = Sending()
    sending.channel.pauseProducing()
    sending.answer(b"first")
    assert not sending.pieces.is_closed
    sending.transport.lose(sending.channel)
    assert sending.pieces.is_closed
