"""A response: its head, and its body as it arrives."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import h11

from image_service.common.http.errors import Disconnected, HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.common.http.tunneled_tls import Stream
    from image_service.common.http.watch import Watch

BLOCK_BYTES = 256 * 1024
MAX_HEAD_BYTES = 64 * 1024
_HEAD_READ_BYTES = 16 * 1024
_MAX_INTERIM_RESPONSES = 100
_LISTS = {"connection", "content-encoding"}  # a field of each member is the same as one of all
_BODILESS = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}


def codings_of(value: str) -> str:
    """Return the content codings in a field (RFC 9110 section 8.4), in lower case; "": there are none.

    Stores keep ``aws-chunked``, the coding of an upload, although the stored bytes do not have it.
    """
    codings = (each.strip(" \t").lower() for each in value.split(","))
    return ", ".join(each for each in codings if each not in {"", "identity", "aws-chunked"})


class HttpResponse:
    """A response, whatever its status; its body can be read once, while the block of its request lasts.

    h11 parses heads and chunks. The bytes of a body whose length is known do not pass through it: it would
    copy each of them several times.
    """

    def __init__(
        self,
        protocol: h11.Connection,
        head: h11.Response,
        opened: Stream,
        watch: Watch,
        *,
        is_head: bool,
    ) -> None:
        self._protocol = protocol
        self._socket = opened
        self._watch = watch
        self._fields: dict[str, str] = {}
        for raw_name, raw_value in head.headers.raw_items():  # quicker than the object itself
            name, value = raw_name.decode("ascii").lower(), raw_value.decode("latin-1")
            if name in _LISTS and name in self._fields:
                value = f"{self._fields.pop(name)}, {value}"
            self._fields.setdefault(name, value)
        self.status = head.status_code
        self.reason = head.reason.decode("latin-1")
        self.length = self._find_length(is_head=is_head)
        """Bytes of the body; None: it is chunked, or ends with the connection."""
        self._left = self.length
        self._pending = b"" if self.length is None else protocol.trailing_data[0]
        """Bytes that were received, but not read."""
        self._is_persistent = head.http_version >= b"1.1" and "close" not in self.field("Connection").lower()

    def field(self, name: str) -> str:
        """Return the value of a header field, or ""; of several of a name the first, or of a list all."""
        return self._fields.get(name.lower(), "")

    @property
    def coding(self) -> str:
        """Content codings of the body, as `codings_of` returns them."""
        return codings_of(self.field("Content-Encoding"))

    def blocks(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            HttpError: it is shorter than announced, or the peer stalls.
            Interrupted: the work is abandoned.
        """
        while block := self._receive(BLOCK_BYTES):
            yield block

    def read(self, limit: int) -> bytes:
        """Return the body, or its first `limit` bytes; raises as `blocks` does."""
        body = bytearray()
        while block := self._receive(min(BLOCK_BYTES, limit - len(body))):
            body += block
        return bytes(body)

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes of the body; raises as `blocks`, also if they are too few."""
        done = 0
        while done < len(target):
            left = target[done:]
            if self._left and not self._pending:
                count = self._watch.receive_into(self._socket, left[: self._left])
                self._count(count)
            else:
                block = self._receive(min(BLOCK_BYTES, len(left)))
                count = len(block)
                if not block:
                    raise HttpError(f"sent {done} of {len(target)} bytes")
                left[:count] = block
            done += count

    def is_at_end(self) -> bool:
        """Return True if nothing of the body is left; the peer may have to say so."""
        return not self._receive(1)

    @property
    def is_connection_free(self) -> bool:
        """True if another request may be sent on the connection."""
        if self._left is not None:
            return self._is_persistent and not self._left and not self._pending
        is_chunked = bool(self.field("Transfer-Encoding"))
        is_complete = self._protocol.their_state is h11.DONE and not self._protocol.trailing_data[0]
        return self._is_persistent and is_chunked and is_complete and not self._pending

    def _find_length(self, *, is_head: bool) -> int | None:
        if is_head or self.status in _BODILESS:
            return 0
        length = self.field("Content-Length")
        return int(length) if length and not self.field("Transfer-Encoding") else None

    def _receive(self, size: int) -> bytes:
        """Return the next bytes of the body; none: it has ended, or none was asked for."""
        size = size if self._left is None else min(size, self._left)
        if not size:
            return b""
        block = self._pending or (
            self._receive_framed() if self._left is None else self._watch.receive(self._socket, size)
        )
        block, self._pending = block[:size], block[size:]
        if self._left is not None:
            self._count(len(block))
        return block

    def _count(self, received: int) -> None:
        """Count bytes of a body of known length."""
        length, left = self.length or 0, self._left or 0
        if not received:
            raise HttpError(f"sent {length - left} of {length} bytes")
        self._left = left - received

    def _receive_framed(self) -> bytes:
        """Return the next bytes of a body whose end the peer marks."""
        while True:
            event = _next_event(self._protocol)
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if event is not h11.NEED_DATA:
                return b""
            block = self._watch.receive(self._socket, BLOCK_BYTES)
            if not block and self.field("Transfer-Encoding"):
                raise HttpError("the connection ended within the body")
            self._protocol.receive_data(block)


def receive_response(
    protocol: h11.Connection, opened: Stream, watch: Watch, *, is_head: bool = False
) -> HttpResponse:
    """Return the final response to the request that was sent; those before it (1xx) are skipped.

    Raises:
        Disconnected: the peer closes the connection instead.
        HttpError: it stalls, or what it sends is not HTTP.
        Interrupted: the work is abandoned.
    """
    event: object = h11.NEED_DATA
    interim = 0
    while not isinstance(event, h11.Response):
        if event is h11.NEED_DATA:
            block = watch.receive(opened, _HEAD_READ_BYTES)
            if not block:
                raise Disconnected("the connection ended without a response")
            protocol.receive_data(block)
        elif interim == _MAX_INTERIM_RESPONSES:
            raise HttpError(f"sent more than {_MAX_INTERIM_RESPONSES} interim responses")
        else:
            interim += 1
        event = _next_event(protocol)
    return HttpResponse(protocol, event, opened, watch, is_head=is_head)


def _next_event(protocol: h11.Connection) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
    try:
        return protocol.next_event()
    except h11.RemoteProtocolError as error:
        if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            raise HttpError(f"sent a head of more than {MAX_HEAD_BYTES // 1024} KiB") from None
        raise HttpError("what it sent is not HTTP/1.1") from None
