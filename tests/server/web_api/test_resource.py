"""The resource and the site of a web API."""

from __future__ import annotations

from contextlib import asynccontextmanager
from io import BytesIO
from typing import TYPE_CHECKING, cast

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

from image_service.core.errors import ImageServiceError, InvalidRequest, NotFound, TooManyQueued
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.messages import ApiRequest, ApiResponse, json_response
from image_service.server.web_api.request_content import MAX_WAITING_BYTES
from image_service.server.web_api.resource import UNCHECKED_BYTES, ApiResource, ApiSite, BoundedRequest
from tests.pytwisted import ensure_deferred
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from twisted.internet.epollreactor import EPollReactor

    from tests.conftest import LoggedFailures

JSON = "Content-Type: application/json"
CHUNK = b"x" * 65_536
MAX_BODY_BYTES = 1024 * 1024


async def echo(request: ApiRequest) -> ApiResponse:
    return ApiResponse(body=request.body)


@asynccontextmanager
async def listening(reactor: EPollReactor, resource: ApiResource) -> AsyncIterator[ApiClient]:
    port = reactor.listenTCP(0, ApiSite(resource, reactor, MAX_BODY_BYTES), interface="127.0.0.1")
    yield ApiClient(reactor, f"http://127.0.0.1:{port.getHost().port}")
    await maybeDeferred(port.stopListening)


def open_channel(site: ApiSite) -> HTTPChannel:
    channel = HTTPChannel()
    channel.site = site  # type: ignore[attr-defined]
    channel.requestFactory = site.requestFactory
    channel.makeConnection(StringTransport())
    return channel


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 20971520"])
def test_body_memory_is_bounded(framing: str) -> None:
    channel = open_channel(ApiSite(ApiResource(RequestGuard(), echo), Clock(), MAX_BODY_BYTES))
    channel.dataReceived(f"POST / HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n{JSON}\r\n\r\n".encode())
    request = cast("BoundedRequest", channel.requests[0])
    for _ in range(20 * 1024 * 1024 // len(CHUNK)):
        request.handleContentChunk(CHUNK)
    assert MAX_BODY_BYTES < len(request.body.getvalue()) <= MAX_BODY_BYTES + len(CHUNK)
    channel.connectionLost(Failure(ConnectionLost()))


@pytest.mark.parametrize("error", [NotFound("no"), ZeroDivisionError()], ids=["refused", "unexpected"])
def test_body_of_a_request_that_is_not_admitted_is_not_kept(
    error: Exception, logged_failures: LoggedFailures
) -> None:
    admission: Deferred[None] = Deferred()

    @asynccontextmanager
    async def admit(*_: object) -> AsyncIterator[int]:
        await admission
        yield 0

    resource = ApiResource(RequestGuard(), echo, admit=admit)
    channel = open_channel(ApiSite(resource, Clock(), MAX_BODY_BYTES))
    transport = cast("StringTransport", channel.transport)
    channel.dataReceived(
        f"POST / HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 655360\r\n\r\n".encode()
    )
    request = cast("BoundedRequest", channel.requests[0])
    for _ in range(2):
        channel.dataReceived(CHUNK)
    assert transport.producerState == "paused"
    assert UNCHECKED_BYTES < len(request.body.getvalue()) <= UNCHECKED_BYTES + len(CHUNK)
    admission.errback(Failure(error))
    assert transport.producerState == "producing"
    assert request.body.getvalue() == b""
    for _ in range(8):
        channel.dataReceived(CHUNK)
    assert request.body.getvalue() == b""
    assert transport.value().startswith(b"HTTP/1.1 404 " if isinstance(error, NotFound) else b"HTTP/1.1 500 ")
    logged_failures.flush(ZeroDivisionError)
    channel.connectionLost(Failure(ConnectionLost()))


@pytest.mark.parametrize(("size", "status"), [(100_000, 200), (100_001, 413)])
@ensure_deferred
async def test_body_is_as_large_as_its_admission_says(reactor: EPollReactor, size: int, status: int) -> None:
    admitted: list[ApiRequest] = []

    @asynccontextmanager
    async def admit(request: ApiRequest, _: object) -> AsyncIterator[int]:
        admitted.append(request)
        yield 100_000

    async with listening(reactor, ApiResource(RequestGuard(), echo, admit=admit)) as client:
        reply = await client("POST", "/a?b=c", body=bytes(size), Content_Type="application/json")
    assert reply.status == status
    assert [(each.method, each.path, each.query, each.body) for each in admitted] == [
        ("POST", "/a", {"b": "c"}, b"")
    ]


@ensure_deferred
async def test_unexpected_error_is_500_without_details_and_logged(
    reactor: EPollReactor, logged_failures: LoggedFailures
) -> None:
    async def fail(_: ApiRequest) -> ApiResponse:
        raise ZeroDivisionError("s3cret")

    async with listening(reactor, ApiResource(RequestGuard(), fail)) as client:
        reply = await client("GET", "/")
    assert (reply.status, reply.document["code"]) == (500, "internal-error")
    assert b"s3cret" not in reply.body
    assert len(logged_failures.flush(ZeroDivisionError)) == 1


@ensure_deferred
async def test_request_has_headers_client_and_query(reactor: EPollReactor) -> None:
    requests = []

    async def keep(request: ApiRequest) -> ApiResponse:
        requests.append(request)
        return ApiResponse()

    async with listening(reactor, ApiResource(RequestGuard(), keep)) as client:
        await client("HEAD", "/a?b=c&e=1&e=2", X_Test="d")
    (request,) = requests
    assert (request.method, request.path, request.query) == ("GET", "/a", {"b": "c", "e": "1,2"})
    assert (request.headers["x-test"], request.client, request.is_local) == ("d", "127.0.0.1", False)
    assert request.content is None


@ensure_deferred
async def test_an_api_renders_its_errors(reactor: EPollReactor, logged_failures: LoggedFailures) -> None:
    errors: dict[str, Exception] = {"/a": NotFound("no a"), "/b": ZeroDivisionError()}

    async def fail(request: ApiRequest) -> ApiResponse:
        raise errors[request.path]

    def render(error: ImageServiceError, path: str) -> ApiResponse:
        return json_response({"path": path, "code": error.code}, 418)

    async with listening(reactor, ApiResource(RequestGuard(), fail, render_error=render)) as client:
        documents = [(await client("GET", path)).document for path in ("/a?x=1", "/b")]
        refused = await client("GET", "/a", Origin="http://evil.test")
    assert documents == [{"path": "/a", "code": "not-found"}, {"path": "/b", "code": "internal-error"}]
    assert (refused.status, refused.document) == (418, {"path": "/a", "code": "forbidden"})
    assert len(logged_failures.flush(ZeroDivisionError)) == 1


def streamed(respond: Callable[[ApiRequest], Awaitable[ApiResponse]]) -> ApiResource:
    return ApiResource(RequestGuard(), respond, is_streamed=lambda method, _: method == "PUT")


@ensure_deferred
async def test_streamed_content_is_read_while_it_is_received(reactor: EPollReactor) -> None:
    sent = bytes(range(256)) * 40_000  # ten times the limit of waiting bytes

    async def store(request: ApiRequest) -> ApiResponse:
        content = request.content
        assert content is not None
        stored = BytesIO()
        while chunk := await content.read():
            stored.write(chunk)
        return json_response({"equal": stored.getvalue() == sent})

    async with listening(reactor, streamed(store)) as client:
        reply = await client("PUT", "/a", body=sent)
        empty = await client("PUT", "/a", body=b"")
    assert reply.document == {"equal": True}
    assert empty.document == {"equal": False}


@ensure_deferred
async def test_a_refusal_follows_streamed_content_that_nobody_reads(reactor: EPollReactor) -> None:
    async def refuse(request: ApiRequest) -> ApiResponse:
        raise NotFound(f"no {request.path}")

    async with listening(reactor, streamed(refuse)) as client:
        replies = [await client("PUT", path, body=CHUNK * 100) for path in ("/a", "/b")]
    assert [(reply.status, reply.document["detail"]) for reply in replies] == [(404, "no /a"), (404, "no /b")]


class StreamedChannel:
    """A connection whose client sends streamed content to a handler that waits."""

    def __init__(self, reactor: EPollReactor) -> None:
        self.requests: list[ApiRequest] = []
        self.response: Deferred[ApiResponse] = Deferred()
        self.channel = open_channel(ApiSite(streamed(self._respond), reactor, MAX_BODY_BYTES))
        self.transport = cast("StringTransport", self.channel.transport)
        head = f"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_WAITING_BYTES * 4}\r\n\r\n"
        self.channel.dataReceived(head.encode())

    async def _respond(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        return await self.response


@ensure_deferred
async def test_receiving_pauses_while_nobody_reads(reactor: EPollReactor) -> None:
    connection = StreamedChannel(reactor)
    content = connection.requests[0].content
    assert content is not None

    def send_until_paused() -> int:
        sent = 0
        while connection.transport.producerState != "paused":
            connection.channel.dataReceived(CHUNK)
            sent += len(CHUNK)
        return sent

    sent = send_until_paused()
    assert sent <= 64 * 1024 + len(CHUNK)  # nobody has read yet
    read = Deferred.fromCoroutine(content.read())
    while not read.called:
        connection.channel.dataReceived(CHUNK)
        sent += len(CHUNK)
    waiting = send_until_paused()
    assert MAX_WAITING_BYTES < waiting <= MAX_WAITING_BYTES + len(CHUNK)
    sent += waiting
    assert len(await read) + len(await content.read()) == sent
    assert connection.transport.producerState == "producing"
    connection.response.callback(ApiResponse())
    assert connection.transport.value() == b""
    connection.channel.dataReceived(bytes(MAX_WAITING_BYTES * 4 - sent))
    assert connection.transport.value().startswith(b"HTTP/1.1 200 ")
    connection.channel.connectionLost(Failure(ConnectionLost()))


@ensure_deferred
async def test_a_read_fails_when_the_client_has_gone(reactor: EPollReactor) -> None:
    connection = StreamedChannel(reactor)
    connection.channel.dataReceived(CHUNK)
    content = connection.requests[0].content
    assert content is not None
    read = Deferred.fromCoroutine(content.read())
    connection.channel.connectionLost(Failure(ConnectionLost()))
    for failed in (read, content.read()):
        with pytest.raises(InvalidRequest):
            await failed


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("ends", ["with content", "with a stream", "with a refusal"])
def test_a_response_after_the_client_has_left_is_dropped(
    method: str, ends: str, logged_failures: LoggedFailures
) -> None:
    work: Deferred[None] = Deferred(lambda work: work.callback(None))  # is completed instead of canceled
    stream = ClosedStream()

    async def respond(_: ApiRequest) -> ApiResponse:
        await work
        if ends == "with a refusal":
            raise InvalidRequest("the connection ended before the content did")
        return ApiResponse(stream=stream) if ends == "with a stream" else ApiResponse(body=b"done")

    channel = open_channel(ApiSite(ApiResource(RequestGuard(), respond), Clock(), MAX_BODY_BYTES))
    channel.dataReceived(f"{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    channel.connectionLost(Failure(ConnectionLost()))
    assert logged_failures.flush() == []
    assert cast("StringTransport", channel.transport).value() == b""
    assert stream.is_closed == (ends == "with a stream")


class ClosedStream:
    """Content that nobody reads."""

    is_closed = False

    async def read(self) -> bytes:
        """Fail: nobody has asked for it."""
        raise AssertionError

    def close(self) -> None:
        """Remember the call."""
        self.is_closed = True


def test_status_line_has_the_phrase_of_a_status_that_twisted_does_not_name() -> None:
    async def refuse(_: ApiRequest) -> ApiResponse:
        raise TooManyQueued("wait")

    channel = open_channel(ApiSite(ApiResource(RequestGuard(), refuse), Clock(), MAX_BODY_BYTES))
    channel.dataReceived(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    written = cast("StringTransport", channel.transport).value()
    assert written.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
