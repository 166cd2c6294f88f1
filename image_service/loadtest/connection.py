"""One kept-alive connection to a server: a request at a time, each as cheap as this reactor makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from typing import Protocol as Structure

import httptools
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Protocol, connectionDone
from zope.interface import implementer

from image_service.loadtest import certificates
from image_service.loadtest.verification import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from OpenSSL import SSL
    from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
    from twisted.python.failure import Failure

    class Transport(ITCPTransport, IPushProducer):
        """What TCP and TLS connections are."""

        def getHandle() -> SSL.Connection:
            """Give OpenSSL's part of one over TLS; another has nothing to give any more when it has ended."""


class Failed(Exception):
    """A request came to nothing.

    Args:
        kind: one word for it, by which failures are counted.
        stale: it met a kept-alive connection that the server was about to close: it may be sent again.
    """

    def __init__(self, kind: str, *, stale: bool = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.stale = stale


class Receiver(Structure):
    """Takes an answer as it comes."""

    def begin(self, answer: Answer) -> None:
        """Take its head; what it raises ends the connection and the request."""

    def take(self, data: bytes) -> None:
        """Take more of its content."""


@implementer(IHandshakeListener)
class Connection(Protocol):
    """A connection, as a protocol of Twisted.

    Args:
        reactor: times pauses.
        clock: seconds, for measuring.
        took: told how many bytes of content came, as they come.
        bytes_per_second: how fast answers are read; None: as they come.
        secure: whether it is there only after a TLS handshake.

    Attributes:
        ready: fires once requests can be sent; fails with Failed.
        first_byte_at: when the first byte of the latest answer came; None: not yet.
    """

    transport: Transport

    def __init__(
        self,
        reactor: IReactorTime,
        clock: Callable[[], float],
        took: Callable[[int], None],
        bytes_per_second: float | None,
        *,
        secure: bool,
    ) -> None:
        self.ready: Deferred[Connection] = Deferred(lambda _: self.close())
        self.first_byte_at: float | None = None
        self._reactor = reactor
        self._clock = clock
        self._took = took
        self._bytes_per_second = bytes_per_second
        self._secure = secure
        self._usable = False
        self._answers = 0
        self._waiting: Deferred[Answer] | None = None
        self._heard_at = clock()
        self._pause: IDelayedCall | None = None

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._usable

    @property
    def is_under_way(self) -> bool:
        """Whether a request was sent whose answer has not ended."""
        return self._waiting is not None

    def ask(self, request: bytes, receiver: Receiver, *, head: bool = False) -> Deferred[Answer]:
        """Send a request, when no other is under way.

        Args:
            request: its head; it has no content.
            receiver: takes the answer.
            head: whether the method is HEAD, whose answers have no content.

        Returns:
            fires with the answer's head when all of it has come; fails with Failed, or with what the
            receiver raises. Cancelling it ends the connection.
        """
        self.first_byte_at = None
        self._heard_at = self._clock()
        self._head_only, self._receiver = head, receiver
        self._status, self._fields = 0, cast("dict[str, str]", {})
        self._complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = Deferred(lambda _: self.close())
        self.transport.write(request)
        return self._waiting

    def expire(self, seconds: float) -> None:
        """Give up a request whose answer has not gone on for so long."""
        if self._waiting is not None and self._clock() - self._heard_at > seconds:
            self._end(Failed("timeout"))

    def close(self) -> None:
        """Close it; a request that is under way fails."""
        self._usable = False
        self._abort()

    def connectionMade(self) -> None:
        """Begin, unless there is a handshake to come."""
        self.transport.setTcpNoDelay(enabled=True)
        if not self._secure:
            self.handshakeCompleted()

    def handshakeCompleted(self) -> None:
        """Begin."""
        self._usable = True
        self.ready.callback(self)

    def dataReceived(self, data: bytes) -> None:
        """Take bytes of an answer."""
        now = self._heard_at = self._clock()
        if self._waiting is None:
            self.close()  # nobody asked
            return
        if self.first_byte_at is None:
            self.first_byte_at = now
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(_fault_of(error))
            return
        if self._complete:  # only now: who asked may ask again at once, and the parser was still at work
            self._finish(Answer(self._status, self._fields))
        else:
            self._slow_down(len(data), now)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail what is under way."""
        self._usable = False
        if self._pause is not None and self._pause.active():
            self._pause.cancel()
        failed = Failed(self._kind_of(reason), stale=self._answers > 0 and self.first_byte_at is None)
        if not self.ready.called:
            self.ready.errback(failed)
        self._finish(failed)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; of one that comes twice the last."""
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Show the head to the receiver."""
        self._status = self._parser.get_status_code()
        self._receiver.begin(Answer(self._status, self._fields))
        if self._head_only:  # the parser does not know, and would wait for content
            self.on_message_complete()

    def on_body(self, data: bytes) -> None:
        """Pass content on."""
        self._took(len(data))
        self._receiver.take(data)

    def on_message_complete(self) -> None:
        """Note that all has come, and whether more may be asked for."""
        self._complete = True
        self._usable = self._usable and self._parser.should_keep_alive()

    def _slow_down(self, count: int, now: float) -> None:
        """Read no more until what came would have come at the pace that is asked for."""
        if self._bytes_per_second is None:
            return
        seconds = count / self._bytes_per_second
        self._heard_at = now + seconds
        if self._pause is not None and self._pause.active():  # TLS may give more than was waited for
            self._pause.delay(seconds)
            return
        self.transport.pauseProducing()
        self._pause = self._reactor.callLater(seconds, self.transport.resumeProducing)

    def _kind_of(self, reason: Failure) -> str:
        """One word for the end of a connection in the midst of an answer."""
        if reason.check(ConnectionDone):
            return "closed"
        of_tls = certificates.kind_of(reason.value, self.transport.getHandle()) if self._secure else None
        return of_tls or "reset"

    def _end(self, failure: BaseException) -> None:
        self.close()
        self._finish(failure)

    def _finish(self, outcome: Answer | BaseException) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.called:  # it was cancelled
            return
        if not self._usable:
            self._abort()
        if isinstance(outcome, BaseException):
            waiting.errback(outcome)
        else:
            self._answers += 1
            waiting.callback(outcome)

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abortConnection()


def _fault_of(error: Exception) -> BaseException:
    """What a callback raised, which the parser wraps; or that the parser made nothing of it."""
    return error.__context__ or Failed("malformed")
