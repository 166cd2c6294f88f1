"""Maps refusals and failures of assisted-service to our errors.

No text contains the upstream's body, the query (it may hold an api key), or the text of an exception, which
may quote bytes of a response.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet import error as network
from twisted.web.client import RequestTransmissionFailed, ResponseFailed

from image_service.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthorized,
    Unavailable,
    Unprocessable,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.http.retry_after import parse_delay_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.web.http_headers import Headers

    from image_service.errors import ImageServiceError

RETRY_AFTER_SECONDS = 5  # long enough for a connection to come back, short enough for a booting machine
_MAX_RETRY_SECONDS = 3600
_CHALLENGE = re.compile("[ -~]{1,1024}")  # values that are safe in our own field

CLIENT_ERRORS: tuple[type[Exception], ...] = (
    ResponseFailed,
    RequestTransmissionFailed,
    network.ConnectError,
    network.ConnectionClosed,
    network.DNSLookupError,
)
"""Exceptions of Twisted's client for failures of the peer or the network; not for our own errors."""

_PASSED_ON: dict[int, type[ImageServiceError]] = {
    400: InvalidRequest,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    422: Unprocessable,
}
_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (VerificationError, "its certificate is not for this host"),
    (network.DNSLookupError, "its name does not resolve"),
    (network.ConnectionRefusedError, "it refuses the connection"),
    (network.ConnectError, "it cannot be connected to"),
    (network.ConnectionClosed, "the connection ended before the answer"),
)


def upstream_error(detail: str) -> UpstreamError:
    """Return the error for a bad response, or for none."""
    return UpstreamError(f"assisted-service: {detail}", retry_after_seconds=RETRY_AFTER_SECONDS)


def upstream_timeout(detail: str) -> UpstreamTimeout:
    """Return the error for an expired timeout."""
    return UpstreamTimeout(f"assisted-service: {detail}", retry_after_seconds=RETRY_AFTER_SECONDS)


def refusal(status: int, headers: Headers, what: str) -> ImageServiceError:
    """Map a response other than 200 for the resource `what`.

    Returns:
        the error of that status if it concerns the client (401, 403, 404, 409, 422; 410 as 404, 429 as 503),
        otherwise 502: any 5xx, and unexpected statuses such as a redirect.
    """
    detail = f"assisted-service answered {status} for {what}"
    if status == 401:  # noqa: PLR2004 - the statuses are their own names
        return Unauthorized(detail, fields=_challenges(headers))
    if status == 429:  # noqa: PLR2004 - same
        return Unavailable(detail, retry_after_seconds=_retry_after(headers))
    if status in _PASSED_ON:
        return _PASSED_ON[status](detail)
    return UpstreamError(detail, retry_after_seconds=_retry_after(headers))


def client_failure(error: Exception, what: str) -> ImageServiceError:
    """Map one of ``CLIENT_ERRORS`` of a request for `what`: 504 if connecting timed out, otherwise 502."""
    causes = list(_root_causes(error))
    if any(isinstance(cause, network.TimeoutError) for cause in causes):
        return upstream_timeout(f"no connection in time for {what}")
    return upstream_error(f"no {what}: {_explain(causes)}")


def _root_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that Twisted's client wrapped into one."""
    if not isinstance(error, (ResponseFailed, RequestTransmissionFailed)):
        yield error
        return
    for reason in error.reasons:
        yield from _root_causes(reason.value)


def _explain(causes: list[BaseException]) -> str:
    for cause in causes:
        if isinstance(cause, SSL.Error):
            return f"TLS failed: {_openssl_reasons(cause)}"
    for kind, text in _CAUSES:
        if any(isinstance(cause, kind) for cause in causes):
            return text
    return "the answer is not HTTP"


def _openssl_reasons(error: SSL.Error) -> str:
    """Return OpenSSL's own texts, which contain neither the peer's name nor its bytes."""
    stack = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return ", ".join(reason for _, _, reason in stack) or "the connection ended"


def _challenges(headers: Headers) -> tuple[tuple[str, str], ...]:
    raw = headers.getRawHeaders(b"WWW-Authenticate", [])
    values = [value.decode("latin-1") for value in raw]
    usable = [value for value in values if _CHALLENGE.fullmatch(value)] or ["Bearer"]
    return tuple(("WWW-Authenticate", value) for value in usable)


def _retry_after(headers: Headers) -> int:
    """Return the response's ``Retry-After`` within bounds if it is in seconds, else ours."""
    (value, *_) = headers.getRawHeaders(b"Retry-After", [b""])
    seconds = parse_delay_seconds(value.decode("latin-1"))
    return RETRY_AFTER_SECONDS if seconds is None else max(1, min(seconds, _MAX_RETRY_SECONDS))
