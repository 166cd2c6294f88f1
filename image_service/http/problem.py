"""Errors as ``application/problem+json`` (RFC 9457): a stable code and our own text."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.http.response import Response, render_fields
from image_service.images.extents import Literal

if TYPE_CHECKING:
    from image_service.errors import ImageServiceError

_ASCII_VISIBLE = range(0x20, 0x7F)


def problem(error: ImageServiceError, *, head_only: bool = False, extra: bytes = b"") -> Response:
    """Render an error.

    Args:
        error: what went wrong.
        head_only: the request was a HEAD: the fields of the GET, without its content.
        extra: further rendered field lines (the ETag of a 412 or 416).

    Returns:
        the answer.
    """
    body = json.dumps(
        {
            "title": HTTPStatus(error.status).phrase,
            "status": error.status,
            "code": error.code,
            "detail": error.detail,
        }
    ).encode()
    fields = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        *((name, _printable(value)) for name, value in error.fields),
    ]
    if error.retry_after_seconds is not None:
        fields.append(("Retry-After", str(error.retry_after_seconds)))
    rendered = render_fields(*fields) + extra
    if head_only:
        return Response(error.status, rendered, what=error.code)
    return Response(error.status, rendered, (Literal(body),), len(body), what=error.code)


def _printable(value: str) -> str:
    """A field value that came from elsewhere, without what could end or break the line."""
    return "".join(character for character in value if ord(character) in _ASCII_VISIBLE)
