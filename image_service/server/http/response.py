"""A response: status, header fields and the extents of the content."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - attrs resolves annotations at run time
from http import HTTPStatus

import attrs

from image_service.core.extents import Extent  # noqa: TC001 - attrs resolves annotations at run time
from image_service.server.http.ranges import ByteRange  # noqa: TC001 - attrs resolves annotations at run time


@attrs.frozen
class Problem:
    """The error in the response to a failed request, for the log.

    Args:
        detail: of the error; as it is in the content.
        request_id: as it is in the content.
        is_temporary: True if the response says when a retry may succeed.
        must_close: True if the connection closes after the response.
    """

    code: str
    detail: str
    request_id: str
    is_temporary: bool = False
    must_close: bool = False


@attrs.frozen(eq=False)
class Response:
    """A response without the fields of its connection (Date, Connection, X-Request-ID).

    Args:
        fields: rendered field lines, Content-Length included.
        body: empty for HEAD and 304.
        length: bytes in `body`.
        ranges: the bytes of the image that are in `body`, in order; of each range, first and stop.
        problem: the error, if it is the response to a failed request.
    """

    status: int
    fields: bytes
    body: tuple[Extent, ...] = ()
    length: int = 0
    problem: Problem | None = None
    ranges: Sequence[ByteRange] = ()

    @property
    def field_lines(self) -> tuple[tuple[str, str], ...]:
        """The names and values of `fields`."""
        lines = self.fields.decode("latin-1").split("\r\n")[:-1]
        return tuple((name, value) for name, _, value in (line.partition(": ") for line in lines))

    @property
    def code(self) -> str:
        """The error's; empty for an image."""
        return self.problem.code if self.problem is not None else ""


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
