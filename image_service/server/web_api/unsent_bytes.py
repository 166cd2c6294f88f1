"""The bytes of replies in memory that clients have not taken yet: all together are limited."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from twisted.internet.abstract import FileDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_UNSENT_BYTES = 32 * 1024 * 1024
"""Of the connections of an API; more than its largest reply, which would be aborted."""
_KEPT_PART = 0.75
"""Of the limit, after connections were aborted, so that the next bytes do not need another search."""


class Sending(Protocol):
    """A connection.

    Args:
        group: the client's address.
    """

    group: str

    def unsent_bytes(self) -> int:
        """Return the bytes in memory that the client has not taken."""


_Sending = TypeVar("_Sending", bound=Sending)


class UnsentBytes(Generic[_Sending]):
    """Aborts connections when the bytes that they have in memory exceed a limit.

    It is the connection whose last bytes are the oldest, of the address that has most in memory: a client
    that takes its replies comes last, and one that takes none cuts those of its own address.

    Args:
        abort: a connection, which is removed first.
    """

    def __init__(self, abort: Callable[[_Sending], object], limit: int = MAX_UNSENT_BYTES) -> None:
        self._abort = abort
        self._limit = limit
        self._counts: dict[_Sending, int] = {}  # as they were when bytes were last written, the oldest first
        self._total = 0

    def record_write(self, connection: _Sending) -> None:
        """Count the bytes of a connection that has been written to."""
        self.remove(connection)
        self._count(connection)
        if self._total > self._limit:
            self._make_room()

    def remove(self, connection: _Sending) -> None:
        """Forget a connection that has ended."""
        self._total -= self._counts.pop(connection, 0)

    def _make_room(self) -> None:
        for connection in tuple(self._counts):
            self.remove(connection)
            self._count(connection)
        if self._total <= self._limit:
            return
        of_group: Counter[str] = Counter()
        for connection, count in self._counts.items():
            of_group[connection.group] += count
        while self._total > self._limit * _KEPT_PART:
            largest = max(of_group, key=of_group.__getitem__)
            oldest = next(each for each in self._counts if each.group == largest)
            of_group[largest] -= self._counts[oldest]
            self.remove(oldest)
            self._abort(oldest)

    def _count(self, connection: _Sending) -> None:
        if count := connection.unsent_bytes():
            self._counts[connection] = count
            self._total += count


def unsent_bytes(transport: object) -> int:
    """Return the bytes that a transport has in memory; those that it has sent of a piece count, too."""
    if not isinstance(transport, FileDescriptor):
        return 0
    return len(transport.dataBuffer) + transport._tempDataLen  # noqa: SLF001 - Twisted tells it in no other way
