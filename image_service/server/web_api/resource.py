"""A web API on twisted.web: checks heads, bounds bodies, writes responses and problem details."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl

import attrs
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.http import datetimeToString
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from image_service.common.concurrency.rate_limiter import RateLimiter
from image_service.core.errors import ContentTooLarge, ImageServiceError, InvalidRequest, Unauthorized
from image_service.server.http.dates import format_http_date
from image_service.server.transport.admission.rate import ClientRate
from image_service.server.web_api.connections import find_connection, record_authenticated
from image_service.server.web_api.messages import ApiRequest, ApiResponse, problem_response
from image_service.server.web_api.request_content import RequestContent
from image_service.server.web_api.response_content import ContentSender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IPushProducer, IReactorTime
    from twisted.python.failure import Failure
    from twisted.web import http

    from image_service.server.web_api.authentication import RequestGuard
    from image_service.server.web_api.request_content import ReceivedContent

_log = Logger()
_MAX_PARAMETERS = 16
_IDLE_SECONDS = 60
_PAUSED_SECONDS = 3600  # while received bytes are not read
UNCHECKED_BYTES = 64 * 1024
"""Of a body, received before the sender is known."""


class BoundedRequest(Request):
    """A request whose body stays in memory and within a limit; twisted.web would write any size to disk.

    Args:
        max_body_bytes: the limit; streamed content has none.

    Of a request that its resource does not admit, at most about `UNCHECKED_BYTES` are kept, so that only
    known clients can use much memory.
    Bytes beyond the limit are read and dropped: closing while the client still sends would reset the
    connection, and the client could not read the response.
    """

    site: ApiSite

    def __init__(self, channel: http.HTTPChannel, *args: object, max_body_bytes: int) -> None:
        super().__init__(channel, *args)  # type: ignore[no-untyped-call]
        self.max_body_bytes = max_body_bytes
        self.stream: RequestContent | None = None
        self.refusal: ImageServiceError | None = None
        self._is_checked = False
        self.received: Deferred[None] = Deferred()  # the whole body
        self._received_bytes = 0
        self.rate = ClientRate(lambda: self._received_bytes, lambda: not self.received.called)

    def gotLength(self, length: int | None) -> None:
        """Prepare for a body of `length` bytes, None: unknown; start to respond if it is streamed."""
        del length  # the received bytes count
        self.body = BytesIO()
        self.content = self.body
        # The request line: twisted.web passes it on behind the body.
        channel = self.channel
        line = channel._command, channel._path, channel._version  # noqa: SLF001
        if channel.site.resource.is_streamed(*_method_and_path(*line[:2])):  # type: ignore[attr-defined]
            self.stream = RequestContent(self._pause, self._receive_more, self.channel.forceAbortClient)
            if (connection := find_connection(channel.transport)) is not None:
                connection.enlarge_buffers()
            super().requestReceived(*line)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:
        """Receive a part of the body."""
        self._received_bytes += len(data)
        if self.stream is not None:
            self.stream.feed(data)
        elif self.refusal is None and self.body.tell() <= self.max_body_bytes:
            self.body.write(data)
            if self.body.tell() > UNCHECKED_BYTES and not self._is_checked:
                self._is_checked = True
                self._check()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Start to respond, unless that began after the head."""
        if self.stream is not None:
            self.stream.complete()
        else:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]
        self.received.callback(None)

    def connectionLost(self, reason: Failure) -> None:
        """End the request."""
        if self.stream is not None:
            self.stream.drop()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def abort(self, reason: str) -> None:
        """Abort the connection."""
        _log.info("aborted a request with large content: {reason}", reason=reason)
        self.channel.forceAbortClient()

    def _check(self) -> None:
        """Receive no more until the resource admits the request."""
        self._pause()
        self.client = self.channel.getPeer()  # twisted.web sets it behind the body
        admission = Deferred.fromCoroutine(self._hold_admission())
        self.notifyFinish().addErrback(lambda _: admission.cancel())
        admission.addErrback(self._refuse)

    async def _hold_admission(self) -> None:
        """Receive the body once the resource admits the request, and be admitted until it has ended."""
        async with self.channel.site.resource.admit(self):  # type: ignore[attr-defined]
            ended: Deferred[None] = Deferred()
            self.notifyFinish().addBoth(lambda _: ended.callback(None))
            self._receive_more()
            await ended

    def _refuse(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        if not isinstance(failure.value, ImageServiceError):
            _log.failure("unexpected error before the content of a request", failure)
        internal = ImageServiceError("internal error; see the log")
        self.refusal = failure.value if isinstance(failure.value, ImageServiceError) else internal
        self.body = BytesIO()
        self._receive_more()

    def _pause(self) -> None:
        cast("IPushProducer", self.transport).pauseProducing()
        self.channel.setTimeout(_PAUSED_SECONDS)

    def _receive_more(self) -> None:
        if not self.received.called and self.channel is not None:
            self.channel.setTimeout(_IDLE_SECONDS)
            cast("IPushProducer", self.transport).resumeProducing()


class ApiResource(Resource):
    """Responds to every request below it with one function.

    A client that disconnects cancels its request; changes that the request has begun are completed.

    Args:
        respond: returns the response, or raises an ImageServiceError.
        render_error: returns the response for an error below a path; None: problem details.
        is_streamed: returns True for a method and a path whose content is streamed: `respond` is called after
            the head. The response is sent after the content; unread content is discarded.
        admit: admits a request with a large body until it has ended, and gives the limit in bytes of that;
            or raises an ImageServiceError. The request has no content yet. None: the limit of the site.
    """

    isLeaf = True
    _log = Logger()

    def __init__(
        self,
        guard: RequestGuard,
        respond: Callable[[ApiRequest], Awaitable[ApiResponse]],
        *,
        render_error: Callable[[ImageServiceError, str], ApiResponse] | None = None,
        is_streamed: Callable[[str, str], bool] = lambda *_: False,
        admit: Callable[[ApiRequest, ReceivedContent], AbstractAsyncContextManager[int]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard
        self._respond = respond
        self._render_error = render_error or (lambda error, _: problem_response(error))
        self.is_streamed = is_streamed
        self._admit = admit

    @asynccontextmanager
    async def admit(self, request: BoundedRequest) -> AsyncIterator[None]:
        """Admit a request of which there is only the head and a part of the body, and limit that."""
        head = request.channel._command, request.channel._path  # noqa: SLF001 - as in `gotLength`
        api_request = self._read_head(request, *_method_and_path(*head), head[1])
        if self._admit is None:
            yield
            return
        async with self._admit(api_request, request) as limit:
            request.max_body_bytes = min(request.max_body_bytes, limit)
            yield

    def render(self, request: BoundedRequest) -> int:
        """Start to respond."""
        serving = Deferred.fromCoroutine(self._serve(request))
        request.notifyFinish().addErrback(lambda _: serving.cancel())
        if request.stream is None:  # else the client decides how long it takes
            _mark_answered(request)
        serving.addErrback(self._log_failure, request)
        return NOT_DONE_YET

    async def respond(self, request: Request, api_request: ApiRequest) -> ApiResponse:
        """Return the response to an accepted request; a subclass may also use twisted.web's `request`."""
        del request  # for subclasses
        return await self._respond(api_request)

    async def _serve(self, request: BoundedRequest) -> None:
        try:
            response = await self.respond(request, self._read_request(request))
        except ImageServiceError as error:
            if isinstance(error, Unauthorized) and request.requestHeaders.hasHeader("Authorization"):
                request.site.log_wrong_credentials(_client(request) or "a Unix socket")
            response = self._error_response(error, request)
        self._send(request, response)

    def _read_request(self, request: BoundedRequest) -> ApiRequest:
        if request.refusal is not None:
            raise request.refusal
        head = self._read_head(request, *_method_and_path(request.method, request.uri), request.uri)
        body = request.body.getvalue()
        if len(body) > request.max_body_bytes:
            raise ContentTooLarge(f"the content is larger than {request.max_body_bytes} bytes")
        return attrs.evolve(head, body=body, content=request.stream)

    def _read_head(self, request: BoundedRequest, method: str, path: str, target: bytes) -> ApiRequest:
        is_streamed = request.stream is not None
        self._guard.check_head(method, path, request.requestHeaders, is_streamed=is_streamed)
        record = partial(record_authenticated, request.channel.transport)
        if self._guard.authenticates(path):
            record()
        return ApiRequest(
            "GET" if method == "HEAD" else method,
            path,
            _parameters(target),
            headers=_field_values(request.requestHeaders),
            client=_client(request),
            is_head=method == "HEAD",
            is_secure=bool(request.isSecure()),  # type: ignore[no-untyped-call]
            target=target.decode("latin-1"),
            record_authenticated=record,
        )

    def _error_response(self, error: ImageServiceError, request: Request) -> ApiResponse:
        return self._render_error(error, _method_and_path(request.method, request.uri)[1])

    def _send(self, request: BoundedRequest, response: ApiResponse) -> None:
        """Send a response after the content: a client may not read before it has sent all of it."""
        if request.stream is not None:
            request.stream.drop()
        request.received.addCallback(lambda _: _write(request, response))

    def _log_failure(self, failure: Failure, request: BoundedRequest) -> None:
        if failure.check(CancelledError):
            return
        self._log.failure("unexpected error in a management request", failure)
        error = ImageServiceError("internal error; see the log")
        self._send(request, self._error_response(error, request))


class ApiSite(Site):
    """A site without sessions, and without an access log, which would hold the query."""

    _log = Logger()

    def __init__(self, resource: ApiResource, reactor: IReactorTime, max_body_bytes: int) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            resource,
            requestFactory=partial(BoundedRequest, max_body_bytes=max_body_bytes),
            parsePOSTFormSubmission=False,
            timeout=_IDLE_SECONDS,
            reactor=reactor,
        )
        self.noisy = False
        self._wrong_credentials: RateLimiter[str] = RateLimiter(reactor)

    def log_wrong_credentials(self, client: str) -> None:
        """Log that a client has presented a wrong token or signature, seldom for one that guesses."""
        unlogged = self._wrong_credentials.admit(client)
        if unlogged is not None:
            self._log.warn(
                "refused a request from {client}: its credentials are wrong{more}",
                client=client,
                more=f", as {unlogged} times since this was last logged" if unlogged else "",
            )

    def log(self, request: http.Request) -> None:
        """Log nothing: handlers log changes."""


def _mark_answered(request: BoundedRequest) -> None:
    """Let the connection be aborted after others until the request has ended."""
    connection = find_connection(request.channel.transport)
    if connection is not None and not request.finished:
        connection.is_answered = True
        request.notifyFinish().addBoth(lambda _: setattr(connection, "is_answered", False))


def _method_and_path(method: bytes, target: bytes) -> tuple[str, str]:
    return method.decode("latin-1"), target.decode("latin-1").partition("?")[0]


def _parameters(target: bytes) -> dict[str, str]:
    """Return the parameters of a query by name, the values of a repeated one joined by commas."""
    query = target.decode("latin-1").partition("?")[2]
    parameters: dict[str, str] = {}
    try:
        for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS):
            parameters[name] = f"{parameters[name]},{value}" if name in parameters else value
    except ValueError:
        raise InvalidRequest("the query has too many parameters") from None
    return parameters


def _field_values(headers: Headers) -> dict[str, str]:
    """Return values by lower-case name, those of a repeated field joined by commas."""
    return {
        name.decode("latin-1").lower(): b", ".join(values).decode("latin-1")
        for name, values in headers.getAllRawHeaders()
    }


def _client(request: Request) -> str:
    """Return the client's host; "" on a Unix socket."""
    address: IPv4Address | IPv6Address | UNIXAddress = request.getClientAddress()
    return "" if isinstance(address, UNIXAddress) else address.host


def write_head(request: Request, response: ApiResponse) -> None:
    """Set status and header fields."""
    request.setResponseCode(response.status, HTTPStatus(response.status).phrase.encode())
    request.responseHeaders = Headers({b"Date": [datetimeToString()]})  # twisted.web's name its version
    if response.stream is None:
        request.setHeader("Cache-Control", "no-store")
        if response.status != HTTPStatus.NO_CONTENT:
            request.setHeader("Content-Type", response.content_type)
            request.setHeader("Content-Length", str(len(response.body)))
    if response.modified is not None:
        request.setHeader("Last-Modified", format_http_date(response.modified))
    for name, value in response.fields:
        request.responseHeaders.addRawHeader(name, value)


def _write(request: Request, response: ApiResponse) -> None:
    has_client = request.channel is not None
    is_read = has_client and request.method != b"HEAD"
    if response.stream is not None and not is_read:
        response.stream.close()
    if not has_client:  # it has left while the handler completed its work
        return
    write_head(request, response)
    if response.stream is not None and is_read:
        ContentSender(request, response.stream, cast("ApiSite", request.site).reactor).start()
    else:
        request.write(response.body)
        request.finish()
