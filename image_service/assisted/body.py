"""Reading a response's body: whole, not larger than a limit, without long silences; or not at all."""

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
    """Collects a body; on any failure closes the connection, which is of no use any more."""

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
            return  # given up; this was on its way already
        self._watchdog.reset(self._silence_seconds)
        self._chunks.append(data)
        self._size += len(data)
        if self._size > self._limit_bytes:
            # Told once the connection is gone, which is soon: within this call the HTTP client below is
            # still about to decide whether it goes back to the pool.
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
            # Also without a length and without chunks, where only the close would tell the end.
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


def collect(
    response: IResponse, what: str, limit_bytes: int, silence_seconds: float, clock: IReactorTime
) -> Deferred[bytes]:
    """Read the body of a response.

    Args:
        response: nothing of its body has been read yet.
        what: what it holds, for messages.
        limit_bytes: refuse more.
        silence_seconds: give up when no byte arrives for so long.
        clock: tells the time.

    Returns:
        the body, once it is whole; ``UpstreamError`` or ``UpstreamTimeout`` otherwise. May be cancelled
        at any time. Cancelled or failed, the connection is closed, not given back to its pool.
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
        del reason  # whatever it is
        self.finished.callback(None)


def discard(response: IResponse) -> Deferred[None]:
    """Close a response's connection, whatever is still to come on it; done when it is gone."""
    closer = _Closer()
    response.deliverBody(closer)
    return closer.finished


def _close(transport: ITransport | None) -> None:
    # Not loseConnection: over TLS that waits for the peer's answer, and a peer that hangs would keep the
    # socket for ever. A producer that is told to stop closes the TCP connection below.
    cast("IPushProducer", transport).stopProducing()
