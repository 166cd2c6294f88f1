"""Errors as responses: status, and problem details (RFC 9457) with a stable code and a text of our own."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.core import errors
from image_service.core.extents import Literal
from image_service.server.http.request_id import new_request_id, valid_request_id
from image_service.server.http.response import Problem, Response, render_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.errors import ImageServiceError

_STATUSES: dict[type[ImageServiceError], int] = {
    errors.InvalidRequest: 400,
    errors.TenantMissing: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.RequestTimeout: 408,
    errors.Conflict: 409,
    errors.Gone: 410,
    errors.PreconditionFailed: 412,
    errors.ContentTooLarge: 413,
    errors.UriTooLong: 414,
    errors.UnsupportedMediaType: 415,
    errors.RangeNotSatisfiable: 416,
    errors.ExpectationFailed: 417,
    errors.MisdirectedRequest: 421,
    errors.Unprocessable: 422,
    errors.TooManyQueued: 429,
    errors.TaskLimitReached: 429,
    errors.TooManyWrongCodes: 429,
    errors.HeadTooLarge: 431,
    errors.ImageServiceError: 500,
    errors.NotImplementedMethod: 501,
    errors.StreamMetadataInvalid: 502,
    errors.UpstreamError: 502,
    errors.UpstreamRefused: 502,
    errors.BaseImageError: 503,
    errors.Unavailable: 503,
    errors.UpstreamTimeout: 504,
    errors.VersionNotSupported: 505,
    errors.BudgetExceeded: 507,
}
"""The status of each class of error, and of its subclasses that are not listed."""

_VISIBLE = frozenset(map(chr, range(0x20, 0x7F)))


def status_of(error: ImageServiceError) -> int:
    """Return the HTTP status of an error."""
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


def problem_document(error: ImageServiceError) -> dict[str, object]:
    """Return the members of an error's problem details."""
    status = status_of(error)
    title = HTTPStatus(status).phrase
    return {"title": title, "status": status, "code": error.code, "detail": error.detail}


def problem(
    error: ImageServiceError, headers: Mapping[str, str], *, head_only: bool = False, extra: bytes = b""
) -> Response:
    """Return the response for an error, with the request's identifier in its content.

    Args:
        headers: of the request, by lower-case name; X-Request-ID is read. Empty: the request was invalid.
        head_only: True for a HEAD request: the fields without the content.
        extra: further rendered field lines (the ETag of a 412 or 416).
    """
    status = status_of(error)
    request_id = valid_request_id(headers.get("x-request-id")) or new_request_id()
    body = json.dumps({**problem_document(error), "id": request_id}).encode()
    fields = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        # Without the characters of a value from elsewhere that could end or break the line.
        *((name, "".join(filter(_VISIBLE.__contains__, value))) for name, value in error.fields),
    ]
    if error.retry_after_seconds is not None:
        fields.append(("Retry-After", str(error.retry_after_seconds)))
    rendered = render_fields(*fields) + extra
    is_temporary = error.retry_after_seconds is not None
    logged = Problem(error.code, error.detail, request_id, is_temporary, error.must_close)
    if head_only:
        return Response(status, rendered, problem=logged)
    return Response(status, rendered, (Literal(body),), len(body), logged)
