"""The content of a request as a file: the reactor fills it, a thread reads it."""

from __future__ import annotations

import io
from collections import deque
from threading import Condition
from typing import TYPE_CHECKING

from image_service.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

MAX_WAITING_BYTES = 1024 * 1024
_PIECE_BYTES = MAX_WAITING_BYTES // 4
"""That a reader waits for: each time that it wakes up, it delays the reactor."""


class RequestContent(io.RawIOBase):
    """Content that is received while it is read, with at most about `MAX_WAITING_BYTES` in memory.

    Args:
        pause: stops receiving; called in the reactor's thread.
        resume: receives again; called in any thread.
    """

    def __init__(self, pause: Callable[[], object], resume: Callable[[], object]) -> None:
        super().__init__()
        self._pause = pause
        self._resume = resume
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
            self._waiting += len(chunk)
            if self._waiting > MAX_WAITING_BYTES and not self._is_paused:
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

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Wait for bytes, for a large buffer a quarter of `MAX_WAITING_BYTES`; 0 at the end.

        Raises:
            InvalidRequest: the connection has ended.
        """
        target = memoryview(buffer)
        with self._changed:
            self._wanted = min(len(target), _PIECE_BYTES)
            self._changed.wait_for(
                lambda: self._waiting >= self._wanted or self._is_complete or self._is_dropped
            )
            if self._is_dropped and not self._is_complete:
                raise InvalidRequest("the connection ended before the content did")
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
