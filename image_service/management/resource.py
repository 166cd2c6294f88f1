"""A management API on twisted.web: checks heads, bounds bodies, writes responses and problem details."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.http import datetimeToString
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from image_service.concurrency.rate_limiter import RateLimiter
from image_service.errors import ContentTooLarge, ImageServiceError, InvalidRequest, Unauthorized
from image_service.http.dates import format_http_date
from image_service.management.messages import ApiRequest, ApiResponse, problem_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure
    from twisted.web import http

    from image_service.management.authentication import RequestGuard

_MAX_PARAMETERS = 16
_IDLE_SECONDS = 60


class BoundedRequest(Request):
    """A request whose body stays in memory and within a limit; twisted.web would write any size to disk.

    Args:
        max_body_bytes: the limit.

    Bytes beyond the limit are read and dropped: closing while the client still sends would reset the
    connection, and the client could not read the response.
    """

    site: ApiSite

    def __init__(self, channel: http.HTTPChannel, *args: object, max_body_bytes: int) -> None:
        super().__init__(channel, *args)  # type: ignore[no-untyped-call]
        self.max_body_bytes = max_body_bytes

    def gotLength(self, length: int | None) -> None:
        """Prepare for a body of `length` bytes; None: unknown."""
        del length  # the received bytes count
        self.body = BytesIO()
        self.content = self.body

    def handleContentChunk(self, data: bytes) -> None:
        """Receive a part of the body."""
        if self.body.tell() <= self.max_body_bytes:
            self.body.write(data)


class ApiResource(Resource):
    """Responds to every request below it with one function.

    A client that disconnects cancels its request; changes that the request has begun are completed.

    Args:
        guard: refuses requests by their heads.
        respond: returns the response, or raises an ImageServiceError.
    """

    isLeaf = True
    _log = Logger()

    def __init__(self, guard: RequestGuard, respond: Callable[[ApiRequest], Awaitable[ApiResponse]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard
        self._respond = respond

    def render(self, request: BoundedRequest) -> int:
        """Start to respond."""
        serving = Deferred.fromCoroutine(self._serve(request))
        request.notifyFinish().addErrback(lambda _: serving.cancel())
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
                client: IPv4Address | IPv6Address = request.getClientAddress()  # type: ignore[no-untyped-call]
                request.site.log_wrong_token(client.host)
            response = problem_response(error)
        _write(request, response)

    def _read_request(self, request: BoundedRequest) -> ApiRequest:
        method = request.method.decode("latin-1")
        path, _, query = request.uri.decode("latin-1").partition("?")
        self._guard.check_head(method, path, request.requestHeaders)
        body = request.body.getvalue()
        if len(body) > request.max_body_bytes:
            raise ContentTooLarge(f"the content is larger than {request.max_body_bytes} bytes")
        try:
            parameters = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS))
        except ValueError:
            raise InvalidRequest("the query has too many parameters") from None
        return ApiRequest("GET" if method == "HEAD" else method, path, parameters, body)

    def _log_failure(self, failure: Failure, request: Request) -> None:
        if failure.check(CancelledError):
            return
        self._log.failure("unexpected error in a management request", failure)
        _write(request, problem_response(ImageServiceError("internal error; see the log")))


class ApiSite(Site):
    """A site without sessions, and without an access log, which would hold the query.

    Args:
        max_body_bytes: of a request.
    """

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
        self._wrong_tokens: RateLimiter[str] = RateLimiter(reactor)

    def log_wrong_token(self, client: str) -> None:
        """Log that a client has presented a wrong token, seldom for one that guesses."""
        unlogged = self._wrong_tokens.admit(client)
        if unlogged is not None:
            self._log.warn(
                "refused a request from {client}: its token is wrong{more}",
                client=client,
                more=f", as {unlogged} times since this was last logged" if unlogged else "",
            )

    def log(self, request: http.Request) -> None:
        """Log nothing: handlers log changes."""


def write_head(request: Request, response: ApiResponse) -> None:
    """Set status and header fields."""
    request.setResponseCode(response.status)
    fields = {b"Date": [datetimeToString()], b"Cache-Control": [b"no-store"]}
    request.responseHeaders = Headers(fields)  # not twisted.web's, which name its version
    if response.status != HTTPStatus.NO_CONTENT:
        request.setHeader("Content-Type", response.content_type)
        request.setHeader("Content-Length", str(len(response.body)))
    if response.modified is not None:
        request.setHeader("Last-Modified", format_http_date(response.modified))
    for name, value in response.fields:
        request.responseHeaders.addRawHeader(name, value)


def _write(request: Request, response: ApiResponse) -> None:
    write_head(request, response)
    request.write(response.body)
    request.finish()
