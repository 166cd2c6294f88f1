"""The content of a request as a file: the reactor fills it, a thread reads it."""

from __future__ import annotations

import io
from collections import deque
from threading import Condition
from typing import TYPE_CHECKING, Protocol

from image_service.core.errors import InvalidRequest
from image_service.server.transport.admission.rate import ClientRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

MAX_WAITING_BYTES = 1024 * 1024
_UNREAD_BYTES = 64 * 1024
"""In memory before the first read, which may wait for its turn."""
_PIECE_BYTES = MAX_WAITING_BYTES // 4
"""That a reader waits for: each time that it wakes up, it delays the reactor."""


class ReceivedContent(Protocol):
    """Content of a request that is being received.

    Args:
        rate: the client's; to be sampled in the reactor's thread.
    """

    rate: ClientRate

    def abort(self, reason: str) -> None:
        """Abort the connection."""


class RequestContent(io.RawIOBase):
    """Content that is received while it is read, with at most about `MAX_WAITING_BYTES` in memory.

    Args:
        pause: stops receiving; called in the reactor's thread.
        resume: receives again; called in any thread.
        abort: aborts the connection; called in the reactor's thread.
    """

    def __init__(
        self, pause: Callable[[], object], resume: Callable[[], object], abort: Callable[[], object]
    ) -> None:
        super().__init__()
        self.rate = ClientRate(lambda: self._received, lambda: self._is_awaited)
        """The client's, while a read waits for it; to be sampled in the reactor's thread."""
        self._pause = pause
        self._resume = resume
        self._abort = abort
        self._received = 0
        self._is_awaited = False
        self._fault = "the connection ended before the content did"
        self._changed = Condition()
        self._chunks: deque[memoryview] = deque()
        self._waiting = 0
        self._wanted = 0
        self._is_paused = False
        self._is_complete = False
        self._is_dropped = False

    def feed(self, chunk: bytes) -> None:
        """Append received bytes."""
        with self._changed:
            if self._is_dropped:
                return
            self._chunks.append(memoryview(chunk))
            self._received += len(chunk)
            self._waiting += len(chunk)
            most = MAX_WAITING_BYTES if self._wanted else _UNREAD_BYTES
            if self._waiting > most and not self._is_paused:
                self._is_paused = True
                self._pause()
            if self._waiting >= self._wanted:
                self._changed.notify()

    def complete(self) -> None:
        """Mark the end of the content."""
        with self._changed:
            self._is_complete = True
            self._changed.notify()

    def drop(self) -> None:
        """Discard unread bytes; further reads fail, unless the content is complete and was read."""
        with self._changed:
            self._is_dropped = True
            self._is_complete = self._is_complete and not self._chunks
            self._chunks.clear()
            self._waiting = 0
            self._continue()
            self._changed.notify()

    def abort(self, reason: str) -> None:
        """Abort the connection; further reads fail for that reason."""
        self._fault = reason
        self.drop()
        self._abort()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Wait for bytes, for a large buffer a quarter of `MAX_WAITING_BYTES`; 0 at the end.

        Raises:
            InvalidRequest: the connection has ended, or was aborted.
        """
        target = memoryview(buffer)
        with self._changed:
            self._wanted = min(len(target), _PIECE_BYTES)
            if self._waiting < self._wanted:
                self._continue()
            self._is_awaited = True
            self._changed.wait_for(
                lambda: self._waiting >= self._wanted or self._is_complete or self._is_dropped
            )
            self._is_awaited = False
            if self._is_dropped and not self._is_complete:
                raise InvalidRequest(self._fault)
            count = 0
            while self._chunks and count < len(target):
                chunk = self._chunks.popleft()
                copied = min(len(chunk), len(target) - count)
                target[count : count + copied] = chunk[:copied]
                count += copied
                if copied < len(chunk):
                    self._chunks.appendleft(chunk[copied:])
            self._waiting -= count
            if self._waiting <= MAX_WAITING_BYTES // 2:
                self._continue()
            return count

    def _continue(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._resume()
