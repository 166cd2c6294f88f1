"""The management API on twisted.web: heads are checked, bodies bounded, answers and errors written."""

from __future__ import annotations

import json
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from image_service.errors import ContentTooLarge, ImageServiceError, InvalidRequest
from image_service.http.dates import format_http_date
from image_service.http.problem import problem_document, status_of
from image_service.standalone.api import ApiAnswer, ApiRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure
    from twisted.web import http

    from image_service.management.authentication import Guard

MAX_BODY_BYTES = 20 * 1024 * 1024  # twice the longest override, for JSON escapes it, and a ramdisk in base64
_MAX_PARAMETERS = 16
_IDLE_SECONDS = 60


class BoundedRequest(Request):
    """A request whose body stays in memory and within a limit; twisted.web would spool any size to disk.

    What is beyond the limit is read and dropped: to close on a client that is still sending would reset
    the connection, and the client would not get to read why.
    """

    def gotLength(self, length: int | None) -> None:
        """Prepare for the body; None: its length is not told."""
        del length  # what really comes counts
        self.body = BytesIO()
        self.content = self.body

    def handleContentChunk(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self.body.tell() <= MAX_BODY_BYTES:
            self.body.write(data)


class ApiResource(Resource):
    """Answers every request below it by one function.

    A client that goes away cancels its request; what its request has begun to change is still changed.

    Args:
        guard: decides by the head alone.
        handle: answers, or raises an ``ImageServiceError``.
    """

    isLeaf = True
    _log = Logger()

    def __init__(self, guard: Guard, handle: Callable[[ApiRequest], Awaitable[ApiAnswer]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard
        self._handle = handle

    def render(self, request: BoundedRequest) -> int:
        """Begin to answer."""
        serving = Deferred.fromCoroutine(self._serve(request))
        request.notifyFinish().addErrback(lambda _: serving.cancel())
        serving.addErrback(self._failed, request)
        return NOT_DONE_YET

    async def _serve(self, request: BoundedRequest) -> None:
        try:
            answer = await self._answer(request, self._read(request))
        except ImageServiceError as error:
            answer = problem(error)
        write(request, answer)

    def _read(self, request: BoundedRequest) -> ApiRequest:
        method = request.method.decode("latin-1")
        self._guard.check(method, request.requestHeaders)
        body = request.body.getvalue()
        if len(body) > MAX_BODY_BYTES:
            raise ContentTooLarge(f"the content is larger than {MAX_BODY_BYTES} bytes")
        target, _, query = request.uri.decode("latin-1").partition("?")
        try:
            parameters = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS))
        except ValueError:
            raise InvalidRequest("too many parameters") from None
        return ApiRequest("GET" if method == "HEAD" else method, target, parameters, body)

    async def _answer(self, request: Request, asked: ApiRequest) -> ApiAnswer:
        del request  # for those who look at more than the handler does
        return await self._handle(asked)

    def _failed(self, failure: Failure, request: Request) -> None:
        if failure.check(CancelledError):
            return
        self._log.failure("a management request failed", failure)
        write(request, problem(ImageServiceError("an internal error; the log has more")))


class ApiSite(Site):
    """A site without sessions, and without an access log, which would tell the query."""

    def __init__(self, resource: ApiResource, reactor: IReactorTime) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            resource,
            requestFactory=BoundedRequest,
            parsePOSTFormSubmission=False,
            timeout=_IDLE_SECONDS,
            reactor=reactor,
        )
        self.noisy = False

    def log(self, request: http.Request) -> None:
        """Log nothing: changes are logged where they are made."""


def problem(error: ImageServiceError) -> ApiAnswer:
    """Tell an error as ``application/problem+json`` (RFC 9457)."""
    body = json.dumps(problem_document(error)).encode() + b"\n"
    return ApiAnswer(status_of(error), body, "application/problem+json", fields=error.fields)


def write_head(request: Request, answer: ApiAnswer) -> None:
    """Set status and header fields."""
    request.setResponseCode(answer.status)
    request.responseHeaders = Headers({b"Cache-Control": [b"no-store"]})
    if answer.status != HTTPStatus.NO_CONTENT:
        request.setHeader("Content-Type", answer.content_type)
        request.setHeader("Content-Length", str(len(answer.body)))
    if answer.modified is not None:
        request.setHeader("Last-Modified", format_http_date(answer.modified))
    for name, value in answer.fields:
        request.responseHeaders.addRawHeader(name, value)


def write(request: Request, answer: ApiAnswer) -> None:
    """Write an answer."""
    write_head(request, answer)
    request.write(answer.body)
    request.finish()
