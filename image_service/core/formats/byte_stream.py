"""A stream of bytes that comes in chunks of any sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_ZERO = re.compile(rb"[^\0]")


class ByteStream:
    """Reads chunks as one sequence of bytes, forwards only.

    Args:
        chunks: the bytes; one chunk is held.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.position = 0
        """Bytes that were read or skipped."""
        self._chunks = chunks
        self._chunk = b""
        self._next = 0

    def read(self, length: int) -> bytes:
        """Return the next ``length`` bytes, fewer at the end."""
        pieces = []
        while length and self._fill():
            pieces.append(self._chunk[self._next : self._next + length])
            length -= len(pieces[-1])
            self._advance(len(pieces[-1]))
        return b"".join(pieces)

    def skip(self, length: int) -> bool:
        """Pass over ``length`` bytes; False if there are fewer."""
        while length and self._fill():
            count = min(length, len(self._chunk) - self._next)
            length -= count
            self._advance(count)
        return not length

    def skip_zeros(self) -> bool:
        """Pass over zero bytes; False at the end of the stream."""
        while self._fill():
            found = _NOT_ZERO.search(self._chunk, self._next)
            self._advance((found.start() if found else len(self._chunk)) - self._next)
            if found:
                return True
        return False

    def _fill(self) -> bool:
        """Get the next chunk if this one is used up; False if there is none."""
        while self._next == len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._chunk, self._next = chunk, 0
        return True

    def _advance(self, count: int) -> None:
        self._next += count
        self.position += count
