"""One kept-alive client connection: one request at a time, at as little CPU cost as the reactor allows."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Protocol, cast

import httptools
from twisted.internet import protocol
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener
from zope.interface import implementer

from image_service.tools.loadtest.traffic.tls import tls_error_kind
from image_service.tools.loadtest.traffic.verification import ResponseHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from OpenSSL import SSL
    from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
    from twisted.python.failure import Failure

    class ClientTransport(ITCPTransport, IPushProducer):
        """The interface of TCP and TLS connections."""

        socket: socket.socket
        bufferSize: int

        def getHandle() -> SSL.Connection:
            """Return OpenSSL's connection; of TLS connections only."""


SLOW_RECEIVE_BUFFER_BYTES = 32 * 1024
"""Of a client with a byte rate, so that unread bytes stay with the server and not with its own kernel."""

_READ_BYTES = 160 * 1024
"""Of one call: enough for the response to a mount's largest range."""

# struct tcp_info of linux/tcp.h, up to tcpi_last_data_recv: milliseconds since the latest data arrived.
_LAST_DATA_RECEIVED = struct.Struct("=52xI")


class RequestFailed(Exception):
    """A request without a response.

    Args:
        kind: one word for the cause; errors are counted by it.
        detail: the server's own words; empty if it sent none.
        stale: the server closed a kept-alive connection before it responded: the request may be sent again.
    """

    def __init__(self, kind: str, detail: str = "", *, stale: bool = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail
        self.stale = stale


class ResponseReceiver(Protocol):
    """Receives a response as it arrives; an exception raised here fails the request."""

    def receive_head(self, head: ResponseHead) -> None:
        """Receive status and header fields."""

    def receive_content(self, data: bytes) -> None:
        """Receive more of the content."""


@implementer(IHandshakeListener)
class ClientConnection(protocol.Protocol):
    """The client's side of a connection.

    Args:
        clock: seconds, for measuring.
        count_content: called with the number of bytes of content that arrived.
        bytes_per_second: how fast responses are read; None: as fast as they arrive.
        secure: over TLS, so usable only after the handshake.

    Attributes:
        ready: fires when requests can be sent; fails with RequestFailed.
        first_byte_at: when the first byte of the latest response arrived; None: it has not been read yet.
        own_wait_seconds: for which it then waited for this client to read it, which is busy with others.
    """

    transport: ClientTransport

    def __init__(
        self,
        reactor: IReactorTime,
        clock: Callable[[], float],
        count_content: Callable[[int], None],
        bytes_per_second: float | None,
        *,
        secure: bool,
    ) -> None:
        self.ready: Deferred[ClientConnection] = Deferred(lambda _: self.close())
        self.first_byte_at: float | None = None
        self.own_wait_seconds = 0.0
        self._reactor = reactor
        self._clock = clock
        self._count_content = count_content
        self._bytes_per_second = bytes_per_second
        self._secure = secure
        self._usable = False
        self._responses = 0
        self._pending: Deferred[ResponseHead] | None = None
        self._complete = False  # the latest response has arrived
        self._active_at = clock()
        self._pause: IDelayedCall | None = None
        self._sends_directly = not secure

    @property
    def usable(self) -> bool:
        """True if another request can be sent."""
        return self._usable

    @property
    def is_busy(self) -> bool:
        """True while a response is outstanding."""
        return self._pending is not None

    @property
    def _awaits_response(self) -> bool:
        """True if a response, or more of it, is to arrive."""
        return self._pending is not None and not self._complete

    def send_request(
        self, request: bytes, receiver: ResponseReceiver, *, head: bool = False
    ) -> Deferred[ResponseHead]:
        """Send a request; only one may be outstanding.

        Args:
            request: the request head; there is no content.
            head: the method is HEAD, whose responses have no content.

        Returns:
            fires with the head when the response is complete; fails with RequestFailed, or with the
            exception of the receiver. Canceling it closes the connection.
        """
        self.first_byte_at = None
        self._active_at = self._clock()
        self._head_only, self._receiver = head, receiver
        self._status, self._fields = 0, cast("dict[str, str]", {})
        self._complete = False
        self._parser = httptools.HttpResponseParser(self)
        pending = self._pending = Deferred[ResponseHead](lambda _: self.close())
        self._write(request)
        return pending

    def check_timeout(self, seconds: float) -> None:
        """Fail the outstanding request if nothing of its response arrived for so long."""
        if self._pending is not None and self._pause is None and self._clock() - self._active_at > seconds:
            self._fail(RequestFailed("timeout"))

    def close(self) -> None:
        """Close the connection; an outstanding request fails."""
        self._usable = False
        if self.transport is not None:
            self.transport.abortConnection()

    def connectionMade(self) -> None:
        """Start, unless a TLS handshake comes first."""
        self.transport.setTcpNoDelay(enabled=True)
        if self._bytes_per_second is not None:
            self.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BUFFER_BYTES)
        if not self._secure:
            self.transport.bufferSize = _READ_BYTES
            self.handshakeCompleted()

    def handshakeCompleted(self) -> None:
        """Start."""
        self._usable = True
        self.ready.callback(self)

    def dataReceived(self, data: bytes) -> None:
        """Receive bytes of a response."""
        sent_at, self._active_at = self._active_at, self._clock()
        if not self._awaits_response:
            self.close()  # a response without a request
            return
        if self.first_byte_at is None:
            self.own_wait_seconds = min(_seconds_since_data(self.transport.socket), self._active_at - sent_at)
            self.first_byte_at = self._active_at - self.own_wait_seconds
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # The parser wraps an exception of a callback; without one, it could not parse the response.
            self._fail(error.__context__ or RequestFailed("malformed"))
            return
        if self._bytes_per_second is not None:
            self._pause_for(len(data) / self._bytes_per_second)
        elif self._complete:  # not in the parser's callback: the next request replaces the parser
            self._succeed()

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """Fail the outstanding request."""
        self._usable = False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        kind = "closed"
        if not reason.check(ConnectionDone):
            tls_kind = tls_error_kind(reason.value, self.transport.getHandle()) if self._secure else None
            kind = tls_kind or "reset"
        failed = RequestFailed(kind, stale=self._responses > 0 and self.first_byte_at is None)
        if not self.ready.called:
            self.ready.errback(failed)
        if self._complete:
            self._succeed()
        else:
            self._finish(failed)

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a field; the last one of a name counts."""
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Pass the head to the receiver."""
        self._status = self._parser.get_status_code()
        self._receiver.receive_head(ResponseHead(self._status, self._fields))
        if self._head_only:  # the parser does not know the method, and would expect content
            self.on_message_complete()

    def on_body(self, data: bytes) -> None:
        """Pass content to the receiver."""
        self._count_content(len(data))
        self._receiver.receive_content(data)

    def on_message_complete(self) -> None:
        """Record that the response is complete, and whether the connection stays open."""
        self._complete = True
        self._usable = self._usable and self._parser.should_keep_alive()

    def _write(self, request: bytes) -> None:
        """Send a request at once: the transport would have the reactor wait until the socket is writable.

        Once the kernel does not take all of it, the transport sends the rest and all that follows.
        """
        if self._sends_directly:
            try:
                sent = self.transport.socket.send(request)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._fail(RequestFailed("reset", stale=self._responses > 0))
                return
            request = request[sent:]
            self._sends_directly = not request
        if request:
            self.transport.write(request)

    def _pause_for(self, seconds: float) -> None:
        """Stop until the bytes that arrived are due at the configured rate."""
        if self._pause is not None:  # TLS delivers several records of one read
            self._pause.delay(seconds)
            return
        self.transport.pauseProducing()
        self._pause = self._reactor.callLater(seconds, self._go_on)

    def _go_on(self) -> None:
        """Read further bytes; a complete response is over only now."""
        self._pause, self._active_at = None, self._clock()
        self.transport.resumeProducing()
        if self._complete:
            self._succeed()

    def _succeed(self) -> None:
        """End the request with the response that has arrived."""
        self._finish(ResponseHead(self._status, self._fields))

    def _fail(self, error: BaseException) -> None:
        self.close()
        self._finish(error)

    def _finish(self, outcome: ResponseHead | BaseException) -> None:
        pending, self._pending = self._pending, None
        if pending is None or pending.called:  # canceled
            return
        if not self._usable:
            self.close()
        if isinstance(outcome, BaseException):
            pending.errback(outcome)
        else:
            self._responses += 1
            pending.callback(outcome)


def _seconds_since_data(connection: socket.socket) -> float:
    """Return for how long, to a few milliseconds, the latest bytes of a connection have been in the kernel.

    Of a response in several segments these are the last ones: the first byte has waited longer.
    """
    size = _LAST_DATA_RECEIVED.size
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    milliseconds: int = _LAST_DATA_RECEIVED.unpack(information)[0]
    return milliseconds / 1000
