"""The errors that failed calls of assisted-service become.

No text contains the upstream's body, the query (it may contain an API key) or the text of an exception, which
may quote bytes of a response.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from OpenSSL import SSL
from twisted.internet import error as network
from twisted.web.client import RequestTransmissionFailed, ResponseFailed

from image_service.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthorized,
    Unavailable,
    Unprocessable,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
)
from image_service.server.http.retry_after import parse_delay_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.web.http_headers import Headers

    from image_service.core.errors import ImageServiceError

RETRY_AFTER_SECONDS = 5  # long enough for a connection to recover, short enough for a booting machine
_MAX_RETRY_SECONDS = 3600
_CHALLENGE = re.compile("[ -~]{1,1024}")  # printable ASCII, safe in a header field

_ERRORS_OF_STATUSES: dict[int, type[ImageServiceError]] = {
    400: InvalidRequest,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    422: Unprocessable,
}
_FAILURES = frozenset({*range(300), 408, 425, *range(500, 1000)})
"""The statuses of a server that fails, and of a success whose content is invalid."""
_CHECK_HOST = "check ASSISTED_SERVICE_HOST"
_CHECK_URL = f"{_CHECK_HOST} and ASSISTED_SERVICE_SCHEME"
_CHECK_LOG = "see the log of assisted-service"
_SPEAKS_HTTPS = "does it speak HTTPS? then set ASSISTED_SERVICE_SCHEME=https"
_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (network.DNSLookupError, f"its host name does not resolve; {_CHECK_HOST} and DNS"),
    (network.ConnectionRefusedError, f"it refuses the connection; {_CHECK_HOST} and that it is running"),
    (network.ConnectError, f"it cannot be connected to; {_CHECK_HOST} and the network"),
)
"""Causes of failures, each with the next step for the operator."""


class ConnectFailed(Exception):
    """No connection could be made.

    Args:
        explanation: why, with the next step for the operator.
        is_late: True if something took too long.
    """

    def __init__(self, explanation: str, *, is_late: bool = False) -> None:
        super().__init__(explanation)
        self.explanation = explanation
        self.is_late = is_late


CLIENT_ERRORS: tuple[type[Exception], ...] = (
    ConnectFailed,
    ResponseFailed,
    RequestTransmissionFailed,
    network.ConnectError,
    network.ConnectionClosed,
    network.DNSLookupError,
)
"""The exceptions of the HTTP client that mean a failure of the server or of the network."""


def upstream_error(detail: str) -> UpstreamError:
    """Return the error (502) of an invalid response, or of none."""
    return UpstreamError(f"assisted-service: {detail}", retry_after_seconds=RETRY_AFTER_SECONDS)


def upstream_timeout(detail: str) -> UpstreamTimeout:
    """Return the error (504) of a response that is late."""
    return UpstreamTimeout(f"assisted-service: {detail}", retry_after_seconds=RETRY_AFTER_SECONDS)


def error_of_status(status: int, headers: Headers, resource: str) -> ImageServiceError:
    """Return the error of a response whose status is not 200.

    It has the same status if the client can act on it (400, 401, 403, 404, 409, 422; a 410 becomes 404, a 429
    becomes 503). All others become 502: UpstreamError if assisted-service fails, else UpstreamRefused.
    """
    detail = f"assisted-service answered {status} for {resource}"
    if status == 401:  # noqa: PLR2004 - the statuses are their own names
        challenges = [value.decode("latin-1") for value in headers.getRawHeaders(b"WWW-Authenticate", [])]
        valid = [value for value in challenges if _CHALLENGE.fullmatch(value)] or ["Bearer"]
        return Unauthorized(detail, fields=tuple(("WWW-Authenticate", value) for value in valid))
    if status in _ERRORS_OF_STATUSES:
        return _ERRORS_OF_STATUSES[status](detail)
    (value, *_) = headers.getRawHeaders(b"Retry-After", [b""])
    delay = parse_delay_seconds(value.decode("latin-1"))
    seconds = RETRY_AFTER_SECONDS if delay is None else max(1, min(delay, _MAX_RETRY_SECONDS))
    if status == 429:  # noqa: PLR2004 - same
        return Unavailable(detail, retry_after_seconds=seconds)
    next_step = _CHECK_URL if status in range(300, 400) else _CHECK_LOG
    kind = UpstreamError if status in _FAILURES else UpstreamRefused
    return kind(f"{detail}; {next_step}", retry_after_seconds=seconds)


def error_of_exception(exception: Exception, resource: str, *, is_plain: bool = True) -> ImageServiceError:
    """Return the error of one of ``CLIENT_ERRORS``: 504 if connecting took too long, else 502.

    Args:
        is_plain: True if the connection was to be without TLS.
    """
    failure = _explain(list(_root_causes(exception)), is_plain=is_plain)
    make = upstream_timeout if failure.is_late else upstream_error
    return make(f"no answer for {resource}: {failure.explanation}")


def _explain(causes: list[BaseException], *, is_plain: bool) -> ConnectFailed:
    for cause in causes:
        if isinstance(cause, ConnectFailed):
            return cause
        if isinstance(cause, network.TimeoutError):
            return ConnectFailed(f"no connection in time; {_CHECK_HOST} and the network", is_late=True)
        for kind, text in _CAUSES:
            if isinstance(cause, kind):
                return ConnectFailed(text)
    next_step = f"{_SPEAKS_HTTPS}; else {_CHECK_LOG}" if is_plain else _CHECK_LOG
    if any(isinstance(cause, network.ConnectionClosed | SSL.Error) for cause in causes):
        return ConnectFailed(f"the connection ended before the answer; {next_step}")
    next_step = f"{_SPEAKS_HTTPS}; else {_CHECK_HOST}" if is_plain else _CHECK_URL
    return ConnectFailed(f"the answer is not HTTP; {next_step}")


def _root_causes(exception: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that Twisted's client wrapped into one."""
    if isinstance(exception, (ResponseFailed, RequestTransmissionFailed)):
        for reason in exception.reasons:
            yield from _root_causes(reason.value)
    else:
        yield exception
