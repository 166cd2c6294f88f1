"""The requests of one connection (RFC 9112 sections 2, 6 and 9): bytes in, events out. Pure.

Events are `Request`, `RepeatedRange`, `BadRequest`, `NEED_DATA` and `END`. Pipelined requests are events one
by one, in order. Nothing follows a bad request, or one that ends its connection, but `END`.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from image_service.core.errors import ImageServiceError
from image_service.server.http.head import MAX_HEAD_BYTES, find_head, parse_head, parse_request_line
from image_service.server.http.ranges import INT_RANGE, format_int_range

if TYPE_CHECKING:
    from image_service.server.http.head import Request

MAX_BUFFERED_BYTES = 2 * MAX_HEAD_BYTES
MAX_DROPPED_BYTES = 1024 * 1024
"""How much input of a closed connection is dropped. More is not read: a reset could destroy the response."""
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
# The numbers of the only Range field of a head, whose name is 5 characters long.
_RANGE_FIELD = re.compile(rb"\r\n(?i:Range): bytes=" + INT_RANGE.pattern + rb"\r\n")
_MAX_TEMPLATE_BYTES = 2048  # a longer head is not worth its memory while the connection is idle


class Signal(enum.Enum):
    """The events without a request."""

    NEED_DATA = "the next request is not complete"
    END = "no request follows"


NEED_DATA: Final = Signal.NEED_DATA
END: Final = Signal.END


@attrs.frozen
class BadRequest:
    """Bytes that are not a valid request.

    Args:
        method: as sent, if it is a known one; ``HEAD`` too if the bytes only begin like a HEAD request, whose
            response has no content; else empty.
        target: as sent, it may hold a credential; empty if the bytes do not begin with a request line.
    """

    error: ImageServiceError
    method: str
    target: str = attrs.field(default="", repr=False)


RepeatedRange: TypeAlias = tuple[int, int]
"""First-pos and last-pos of a request that differs from the latest `Request` in these alone."""
Event: TypeAlias = "Request | RepeatedRange | BadRequest | Literal[Signal.NEED_DATA, Signal.END]"


class RequestReader:
    """Reads the requests of one connection.

    The requests of a mount differ in the two numbers of Range and in nothing else. Such a head is not parsed:
    it becomes a `RepeatedRange`, which `repeat` turns into the request that parsing would return. A head that
    equals the latest one becomes the same `Request` object.
    """

    __slots__ = (
        "_after",
        "_after_bytes",
        "_before",
        "_before_bytes",
        "_dropped",
        "_is_over",
        "_latest",
        "_latest_head",
        "buffer",
        "is_client_closed",
    )

    def __init__(self) -> None:
        self.buffer = b""
        """Bytes received that no event has taken; read-only for users."""
        self.is_client_closed = False
        """True if the client has closed its side; read-only for users."""
        self._is_over = False  # the latest request was the last one
        self._dropped: int | None = None  # bytes since `close`
        self._latest: Request | None = None
        self._latest_head = b""  # empty: too long to be kept
        self._before = self._after = b""  # the latest head up to the numbers of Range and behind them, if any
        self._before_bytes = self._after_bytes = 0  # their lengths

    @property
    def is_exhausted(self) -> bool:
        """True if the client has closed its side and every byte has been taken."""
        return self.is_client_closed and not self.buffer

    @property
    def is_full(self) -> bool:
        """True if no more bytes should be read from the client for now, or after `close` ever."""
        if self._dropped is not None:
            return self._dropped > MAX_DROPPED_BYTES
        return len(self.buffer) > MAX_BUFFERED_BYTES

    def receive(self, data: bytes) -> None:
        """Add bytes from the client; drop them after `close`."""
        if self._dropped is not None:
            self._dropped += len(data)
        else:
            self.buffer = self.buffer + data if self.buffer else data

    def receive_end(self) -> None:
        """Note that the client has closed its side."""
        self.is_client_closed = True

    def next_event(self, data: bytes = b"") -> Event:
        """Add bytes from the client; return the next event, and take its bytes out of the buffer."""
        if self.buffer:
            data = self.buffer + data
        if self._is_over:
            self.buffer = data
            return END
        if known := self._match_latest(data):
            self.buffer = b""
            return known
        if data.startswith(b"\r\n"):  # RFC 9112 2.2: empty lines before a request are ignored
            data = _EMPTY_LINES.sub(b"", data, count=1)
        self.buffer = data
        try:
            length = find_head(data)
            if length is None:
                return END if self.is_client_closed else NEED_DATA
            request = self._match_latest(data[:length]) or self._parse(data[:length])
        except ImageServiceError as error:
            return self.reject(error)
        self.buffer = data[length:]
        return request

    def reject(self, error: ImageServiceError) -> BadRequest:
        """Refuse the buffered bytes as a request, and drop them: nothing behind them can be trusted."""
        method, target = parse_request_line(self.buffer)
        if self.buffer.startswith(b"HEAD "):
            method = "HEAD"
        self.close()
        return BadRequest(error, method, target)

    def close(self) -> None:
        """Drop the buffered bytes; no request follows."""
        self._is_over = True
        self._dropped = 0
        self.buffer = b""

    def repeat(self, repeated: RepeatedRange) -> Request:
        """Return the request that a `RepeatedRange` stands for."""
        if self._latest is None:
            raise ValueError("there is no request to repeat")
        headers = {**self._latest.headers, "range": format_int_range(*repeated)}
        return attrs.evolve(self._latest, headers=headers)

    def _match_latest(self, data: bytes) -> Request | RepeatedRange | None:
        """Return the request, unparsed, if the data is exactly one head like the latest; else None."""
        before, after = self._before, self._after
        if not before:
            return self._latest if data and data == self._latest_head else None
        if data.startswith(before) and data.endswith(after):
            match = INT_RANGE.fullmatch(data, self._before_bytes, len(data) - self._after_bytes)
            if match is not None:
                first, last = match.groups()
                return int(first), int(last)
        return None

    def _parse(self, head: bytes) -> Request:
        self._before = self._latest_head = b""
        request = self._latest = parse_head(head)
        self._is_over = not request.keep_alive
        if len(head) <= _MAX_TEMPLATE_BYTES:
            self._latest_head = head
            match = _RANGE_FIELD.search(head)
            # A second Range field would make another value, a list.
            if match is not None and request.headers["range"] == match[0][9:-2].decode("ascii"):
                self._before, self._after = head[: match.start(1)], head[match.end(2) :]
                self._before_bytes, self._after_bytes = len(self._before), len(self._after)
        return request
