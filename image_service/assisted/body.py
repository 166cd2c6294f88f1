"""Reads the body of a response: complete, within a size limit and a silence timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.web.client import ResponseDone

from image_service.assisted.failures import upstream_error, upstream_timeout

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITransport
    from twisted.python.failure import Failure
    from twisted.web.iweb import IResponse


class _Collector(Protocol):
    """Collects a body; after a failure the connection is closed."""

    def __init__(self, what: str, limit_bytes: int, silence_seconds: float, clock: IReactorTime) -> None:
        self.finished: Deferred[bytes] = Deferred(lambda _: self._stop())
        self._what = what
        self._limit_bytes = limit_bytes
        self._silence_seconds = silence_seconds
        self._clock = clock
        self._watchdog: IDelayedCall | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._too_large = False

    def connectionMade(self) -> None:
        self._watchdog = self._clock.callLater(self._silence_seconds, self._stalled)

    def dataReceived(self, data: bytes) -> None:
        if self._watchdog is None or self._too_large:
            return  # canceled or failed; these bytes were in flight
        self._watchdog.reset(self._silence_seconds)
        self._chunks.append(data)
        self._size += len(data)
        if self._size > self._limit_bytes:
            # The error is raised when the connection is lost: within this call the HTTP client below has not
            # decided yet whether the connection returns to the pool.
            self._too_large = True
            _close(self.transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._watchdog is None:
            return
        self._disarm()
        if self._too_large:
            self.finished.errback(upstream_error(f"{self._what} is larger than {self._limit_bytes} bytes"))
        elif isinstance(reason.value, ResponseDone):
            self.finished.callback(b"".join(self._chunks))
        else:
            # Also without Content-Length and chunks, where only the close would mark the end.
            self.finished.errback(upstream_error(f"{self._what} ended early, after {self._size} bytes"))

    def _stalled(self) -> None:
        self._stop()
        self.finished.errback(upstream_timeout(f"{self._what} stalled for {self._silence_seconds:g} s"))

    def _stop(self) -> None:
        self._disarm()
        _close(self.transport)

    def _disarm(self) -> None:
        if self._watchdog is not None and self._watchdog.active():
            self._watchdog.cancel()
        self._watchdog = None


def read_body(
    response: IResponse, what: str, limit_bytes: int, silence_seconds: float, clock: IReactorTime
) -> Deferred[bytes]:
    """Read the whole body of a response.

    Args:
        response: its body has not been read yet.
        what: its content, for messages.
        limit_bytes: UpstreamError if the body is larger.
        silence_seconds: UpstreamTimeout if no byte arrives for so long.
        clock: of the timeout.

    Returns:
        the body. May be canceled at any time; canceled or failed, the connection is closed instead of
        returned to its pool.
    """
    collector = _Collector(what, limit_bytes, silence_seconds, clock)
    response.deliverBody(collector)
    return collector.finished


class _Closer(Protocol):
    def __init__(self) -> None:
        self.finished: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        _close(self.transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        del reason  # any
        self.finished.callback(None)


def discard_body(response: IResponse) -> Deferred[None]:
    """Close the connection of a response; fires when it is lost."""
    closer = _Closer()
    response.deliverBody(closer)
    return closer.finished


def _close(transport: ITransport | None) -> None:
    # Not loseConnection: over TLS that waits for the peer's close, and a peer that hangs would keep the
    # socket open. stopProducing closes the TCP connection below.
    cast("IPushProducer", transport).stopProducing()
