"""What is told of connections to whoever counts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable


class Abort(enum.Enum):
    """Why an answer did not come to its end."""

    CLIENT_GONE = "client-gone"
    NO_PROGRESS = "no-progress"
    GOING_AWAY = "going-away"
    DISK_FAILED = "disk-failed"
    FILE_SHORTER = "file-shorter"
    OWN_FAULT = "own-fault"


class SentBytes(Protocol):
    """Bytes that the transport took, those of heads included: senders add to them."""

    sendfile: int
    copy: int
    tls: int


class Observer(Protocol):
    """Counts. It is called for every request, in the reactor's thread, and has to be quick."""

    @property
    def sent(self) -> SentBytes:
        """What was sent; the same object always."""

    def answer_began(self, handler: str, seconds: float) -> None:
        """An answer goes out.

        Args:
            handler: of its subject.
            seconds: since the request's head had arrived.
        """

    def request_ended(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """A request is over.

        Args:
            handler: of its subject; empty: there was no answer, or it was about nothing.
            method: as sent; empty where the head could not be read.
            status: of the answer; 0: there was none.
            seconds: since its head had arrived.
            body_bytes: bytes of content that the transport took.
        """

    def counter(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:
        """Give what counts requests that are alike, whose answers begin and end at once.

        Args:
            handler: of the subject.
            method: as sent.
            status: of the answers.

        Returns:
            to be called with the seconds since the request's head had arrived, and the bytes of content
            that the transport took.
        """

    def aborted(self, reason: str) -> None:
        """A request's answer did not come to its end; it may not even have begun.

        Args:
            reason: the value of an ``Abort``.
        """

    def refused(self, reason: str) -> None:
        """There was no room.

        Args:
            reason: ``queue-full`` or ``queue-wait`` for a download, ``connections`` for a whole connection.
        """


@attrs.define
class NullByteCounters:
    """Bytes that nobody asks for."""

    sendfile: int = 0
    copy: int = 0
    tls: int = 0


class NullObserver:
    """Counts nothing."""

    sent = NullByteCounters()

    def answer_began(self, handler: str, seconds: float) -> None:
        """See ``Observer``."""

    def request_ended(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """See ``Observer``."""

    def counter(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:  # noqa: ARG002 - counts nothing
        """See ``Observer``."""
        return lambda _seconds, _body_bytes: None

    def aborted(self, reason: str) -> None:
        """See ``Observer``."""

    def refused(self, reason: str) -> None:
        """See ``Observer``."""


NOBODY = NullObserver()
