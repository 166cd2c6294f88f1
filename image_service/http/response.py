"""A response: status, header fields and the extents of the content."""

from __future__ import annotations

from http import HTTPStatus

import attrs

from image_service.images.extents import Extent  # noqa: TC001 - attrs resolves annotations at run time


@attrs.frozen(eq=False)
class Response:
    """A response without the fields of its connection (Date, Connection, X-Request-ID).

    Args:
        status: HTTP status code.
        fields: rendered field lines, Content-Length included.
        body: empty for HEAD and 304.
        length: bytes in `body`.
        code: of the error, for the log; empty for an image.
    """

    status: int
    fields: bytes
    body: tuple[Extent, ...] = ()
    length: int = 0
    code: str = ""


def render_fields(*fields: tuple[str, str]) -> bytes:
    """Render names and values, in Latin-1, as lines that end in CRLF.

    Raises:
        ValueError: a value holds a line end, which would begin another field, or NUL.
    """
    for name, value in fields:
        if any(character in value for character in "\r\n\0"):
            msg = f"the value of {name} contains a line end or NUL"
            raise ValueError(msg)
    return "".join(f"{name}: {value}\r\n" for name, value in fields).encode("latin-1")


STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}
"""Status line by code."""
