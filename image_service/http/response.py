"""What goes back: status, header fields and the extents of the content."""

from __future__ import annotations

from http import HTTPStatus

import attrs

from image_service.images.extents import Extent  # noqa: TC001 - attrs resolves annotations at run time


@attrs.define(eq=False)
class Response:
    """An answer, but for the fields that belong to the connection (Date, Connection, X-Request-ID).

    Nobody but a lease changes one.

    Args:
        status: HTTP status code.
        fields: rendered field lines, each ending in CRLF; Content-Length among them.
        body: what is sent behind the head; empty for HEAD and 304.
        length: bytes in ``body``.
        what: for the log: the error's code; empty for an image.
    """

    status: int
    fields: bytes
    body: tuple[Extent, ...] = ()
    length: int = 0
    what: str = ""


def render_fields(*fields: tuple[str, str]) -> bytes:
    """Render field lines.

    Args:
        fields: names and values, Latin-1 and without line ends.

    Returns:
        the lines, each ending in CRLF.

    Raises:
        ValueError: a line end or NUL in a value; it would make another field.
    """
    for name, value in fields:
        if any(character in value for character in "\r\n\0"):
            msg = f"the value of {name} holds a line end or NUL"
            raise ValueError(msg)
    return "".join(f"{name}: {value}\r\n" for name, value in fields).encode("latin-1")


STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}
"""Status line by code."""
