"""The observer of connections: the events that they report for the metrics."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable


class AbortReason(enum.Enum):
    """The reasons why a response was not sent to its end."""

    CLIENT_GONE = "client-gone"
    NO_PROGRESS = "no-progress"
    TOO_SLOW = "too-slow"
    SHUTDOWN = "shutdown"
    DISK_FAILED = "disk-failed"
    ORIGIN_FAILED = "origin-failed"
    SHORT_READ = "short-read"
    INTERNAL_ERROR = "internal-error"


class RefusalReason(enum.Enum):
    """Which limit of our own a request or a connection was refused for."""

    QUEUE_FULL = "queue-full"
    QUEUE_WAIT = "queue-wait"
    CONNECTIONS = "connections"
    CONNECTIONS_PER_ADDRESS = "connections-per-address"
    UPSTREAM_QUEUE = "upstream-queue"


class HandshakeFailure(enum.Enum):
    """The reasons why a TLS handshake failed."""

    NOT_TRUSTED = "not-trusted"
    PROTOCOL_VERSION = "protocol-version"
    NO_SHARED_CIPHER = "no-shared-cipher"
    PLAIN_HTTP = "plain-http"
    NOT_TLS = "not-tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    PROTOCOL_ERROR = "protocol-error"


@attrs.define
class SentBytes:
    """Bytes that the kernel accepted, heads included.

    Senders add to them directly: a call per piece would cost too much.
    """

    sendfile: int = 0
    copy: int = 0
    tls: int = 0


class Observer(Protocol):
    """Records statistics. Called for every request, in the reactor's thread."""

    @property
    def sent(self) -> SentBytes:
        """The bytes that were sent; always the same object."""

    def record_first_byte(self, handler: str, seconds: float) -> None:
        """Record that a response starts, `seconds` after the request's head had arrived."""

    def record_request(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """Record a finished request.

        Args:
            handler: of its subject; empty: there was no response, or no route.
            method: as sent; empty if the head could not be read.
            status: of the response; 0 if there was none.
            seconds: since its head had arrived.
            body_bytes: bytes of content that the kernel accepted.
        """

    def get_recorder(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:
        """Return a function that records one of many equal requests, each sent within one call.

        It takes the seconds since the request's head had arrived, and the bytes of content sent.
        """

    def record_abort(self, reason: AbortReason) -> None:
        """Record a response that was not sent to its end; it may not even have started."""

    def record_refusal(self, reason: RefusalReason) -> None:
        """Record a request or a connection that was refused for our own load."""

    def record_handshake_failure(self, reason: HandshakeFailure) -> None:
        """Record a TLS handshake that failed."""
