"""The content of a request, read while it is received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from image_service.core.errors import InvalidRequest
from image_service.server.transport.admission.rate import ClientRate

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WAITING_BYTES = 512 * 1024
_UNREAD_BYTES = 64 * 1024
"""In memory before the first read, which may wait for its turn."""
_PIECE_BYTES = MAX_WAITING_BYTES // 4
"""The least that `RequestContent.read` returns before the end: its callers use a thread for each piece."""


class ReceivedContent(Protocol):
    """Content of a request that is being received.

    Args:
        rate: the client's; to be sampled in the reactor's thread.
    """

    rate: ClientRate

    def abort(self, reason: str) -> None:
        """Abort the connection."""


class RequestContent:
    """Content that is received while it is read, with at most about `MAX_WAITING_BYTES` in memory.

    Args:
        pause: stops receiving.
        resume: receives again.
        abort: aborts the connection.
    """

    def __init__(
        self, pause: Callable[[], object], resume: Callable[[], object], abort: Callable[[], object]
    ) -> None:
        self.rate = ClientRate(lambda: self._received, lambda: self._read is not None)
        """The client's, while a read waits for it."""
        self._pause = pause
        self._resume = resume
        self._abort = abort
        self._received = 0
        self._fault = "the connection ended before the content did"
        self._waiting = bytearray()  # not the chunks themselves: one of a byte takes 40
        self._read: Deferred[None] | None = None
        self._most = _UNREAD_BYTES
        self._is_paused = False
        self._is_complete = False
        self._is_dropped = False

    def feed(self, chunk: bytes) -> None:
        """Append received bytes."""
        if self._is_dropped:
            return
        self._waiting += chunk
        self._received += len(chunk)
        if len(self._waiting) >= _PIECE_BYTES:
            self._end_read()
        if len(self._waiting) > self._most and not self._is_paused:
            self._is_paused = True
            self._pause()

    def complete(self) -> None:
        """Mark the end of the content."""
        self._is_complete = True
        self._end_read()

    def drop(self) -> None:
        """Discard unread bytes; further reads fail, unless the content is complete and was read."""
        self._is_dropped = True
        self._is_complete = self._is_complete and not self._waiting
        self._take()
        self._end_read()

    def abort(self, reason: str) -> None:
        """Abort the connection; further reads fail for that reason."""
        self._fault = reason
        self.drop()
        self._abort()

    async def read(self) -> bytes:
        """Wait for a quarter of `MAX_WAITING_BYTES` or the end of the content, and return all bytes received.

        At the end that may be fewer, or none.

        Raises:
            InvalidRequest: the connection has ended, or was aborted.
        """
        self._most = MAX_WAITING_BYTES
        if len(self._waiting) < _PIECE_BYTES and not (self._is_complete or self._is_dropped):
            self._continue()
            self._read = Deferred()
            try:
                await self._read
            finally:
                self._read = None
        if self._is_dropped and not self._is_complete:
            raise InvalidRequest(self._fault)
        return self._take()

    def _take(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting = bytearray()  # a cleared one keeps its memory
        self._continue()
        return taken

    def _end_read(self) -> None:
        if self._read is not None and not self._read.called:
            self._read.callback(None)

    def _continue(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._resume()
