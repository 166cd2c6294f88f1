"""Reading the body of a response: whole, within a size limit and without long silence, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.web.client import ResponseDone

from image_service.server.assisted.failures import upstream_error, upstream_timeout

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITransport
    from twisted.python.failure import Failure
    from twisted.web.iweb import IResponse

    from image_service.core.errors import UpstreamError


class _BodyReader(Protocol):
    """Collects a body; on any failure aborts the connection, which cannot be used again."""

    def __init__(
        self,
        resource: str,
        limit_bytes: int,
        silence_seconds: float,
        clock: IReactorTime,
        may_end_early: bool,  # noqa: FBT001 - same
    ) -> None:
        self.finished: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._resource = resource
        self._limit_bytes = limit_bytes
        self._silence_seconds = silence_seconds
        self._clock = clock
        self._may_end_early = may_end_early
        self._watchdog: IDelayedCall | None = None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._is_too_large = False

    def connectionMade(self) -> None:
        self._watchdog = self._clock.callLater(self._silence_seconds, self._fail_silent)

    def dataReceived(self, data: bytes) -> None:
        if self._watchdog is None or self._is_too_large:
            return  # data that was on its way when the connection was aborted
        self._watchdog.reset(self._silence_seconds)
        self._chunks.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > self._limit_bytes:
            # Fails only when the connection is gone, which is soon: within this call the HTTP client below
            # has yet to decide whether it returns to the pool.
            self._is_too_large = True
            _abort(self.transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._watchdog is None:
            return
        self._stop_watchdog()
        if self._is_too_large:
            detail = f"{self._resource} is larger than {self._limit_bytes} bytes"
            self.finished.errback(upstream_error(detail))
        elif isinstance(reason.value, ResponseDone) or self._may_end_early:
            self.finished.callback(b"".join(self._chunks))
        else:
            # Also without Content-Length and chunked coding: a close does not prove that the body is whole.
            detail = f"{self._resource} ended early, after {self._size_bytes} bytes"
            self.finished.errback(upstream_error(detail))

    def _fail_silent(self) -> None:
        self._abort()
        self.finished.errback(upstream_timeout(f"{self._resource} stalled for {self._silence_seconds:g} s"))

    def _abort(self) -> None:
        self._stop_watchdog()
        _abort(self.transport)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None and self._watchdog.active():
            self._watchdog.cancel()
        self._watchdog = None


def read_body(  # noqa: PLR0913 - a response and its limits
    response: IResponse,
    resource: str,
    limit_bytes: int,
    silence_seconds: float,
    clock: IReactorTime,
    *,
    may_end_early: bool = False,
) -> Deferred[bytes]:
    """Read the whole body of a response; ``resource`` names it in errors.

    With ``may_end_early`` it may end before it is whole, and without a promised length: the body of an error.

    Fails with ``UpstreamError`` if the body is incomplete or too large, with ``UpstreamTimeout`` if no byte
    arrives for ``silence_seconds``. May be canceled at any time. If it fails or is canceled, the connection
    is aborted and does not return to its pool.
    """
    reader = _BodyReader(resource, limit_bytes, silence_seconds, clock, may_end_early)
    response.deliverBody(reader)
    return reader.finished


class _ConnectionAborter(Protocol):
    def __init__(self, error: UpstreamError) -> None:
        self.finished: Deferred[IResponse] = Deferred()
        self._error = error

    def connectionMade(self) -> None:
        _abort(self.transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        del reason  # part of the interface
        self.finished.errback(self._error)


def abort_response(response: IResponse, error: UpstreamError) -> Deferred[IResponse]:
    """Abort the connection of a response without reading the body; fails with ``error`` when it is lost."""
    aborter = _ConnectionAborter(error)
    response.deliverBody(aborter)
    return aborter.finished


def _abort(transport: ITransport | None) -> None:
    # Not loseConnection: over TLS that waits for the peer, and a peer that hangs would keep the socket open.
    # A producer that is stopped closes the TCP connection below.
    cast("IPushProducer", transport).stopProducing()
