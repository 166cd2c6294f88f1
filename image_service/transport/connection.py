"""The connection (RFC 9112): requests in order, one answered at a time, each refusal readable.

What it waits for is always one of: the TLS handshake, a request head, the next request, the application,
a slot, the client taking bytes, or the client closing. Each but the application's has its deadline.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from zope.interface import implementer

from image_service.errors import ImageServiceError, RequestTimeout
from image_service.http.head import MAX_HEAD_BYTES, HeadParser, find_head
from image_service.http.problem import problem
from image_service.transport.access_log import COMPLETE, ConnectionLog
from image_service.transport.admission import is_download
from image_service.transport.deadline import Deadline
from image_service.transport.exchange import Answer, Exchange
from image_service.transport.further_ranges import FurtherRanges
from image_service.transport.observer import AbortReason
from image_service.transport.progress import Progress
from image_service.transport.sendfile_sender import SendfileSender
from image_service.transport.tls_sender import TlsSender

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from image_service.http.head import Request
    from image_service.transport.factory import ConnectionFactory
    from image_service.transport.producer import Sender

_log = Logger()

LINGER_SECONDS = 2
"""How long a closed connection is kept for the client to read the last answer (RFC 9112 9.6)."""
MAX_LINGER_BYTES = 1024 * 1024
"""How much of what a client still sends is read and thrown away; the rest has to wait for the end."""
MAX_BUFFERED_BYTES = 2 * MAX_HEAD_BYTES
CROWDED_HEAD_SECONDS = 1.0

_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
_STALL_CHECKS = 4  # in one stall timeout


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class Connection(Protocol):
    """One client's connection.

    Args:
        server: what all connections share.
        secure: whether TLS lies below.
    """

    # tcp.Server, or the TLS protocol over one: both have more than ITransport, neither says so by a type.
    transport: Any

    def __init__(self, server: ConnectionFactory, *, secure: bool, crowded: bool) -> None:
        self._server = server
        self._secure = secure
        self._crowded = crowded
        self._buffer = b""
        self._parser = HeadParser()
        self._further: FurtherRanges | None = None  # of the request that was parsed last
        self.exchange: Exchange | None = None
        self._taking = False  # within _take_requests
        self._head_begun = True  # the deadline is the head's, not the idle one
        self._reading_paused = False
        self._client_done = False  # it has closed its side
        self._closing = False
        self._lingered = 0
        self._failure: tuple[AbortReason, str] | None = None  # why the connection is aborted
        self._deadline = Deadline(server.clock, self._deadline_passed)

    # The transport's calls.

    def connectionMade(self) -> None:
        """Accepted; on TLS the handshake is still to come."""
        transport = self.transport
        transport.setTcpNoDelay(True)  # else every answer's last segment waits for Nagle
        server = self._server
        page_cache, sent = server.page_cache, server.observer.sent
        self._sender: Sender = (
            TlsSender(transport, page_cache, self, sent)
            if self._secure
            else SendfileSender(transport, page_cache, self, sent, lanes=server.lanes, clock=server.clock)
        )
        self._progress = Progress(self._server.clock, self._tcp().getHandle())
        self._address = _plain_address(transport.getPeer().host)
        self._log = ConnectionLog(self._server.access_log, self._address)
        limits = self._server.limits
        self._deadline.set(limits.handshake_seconds if self._secure else self._first_head_seconds())

    def _first_head_seconds(self) -> float:
        """Less in a crowd: who is silent must not take the places that are kept for probes."""
        seconds = self._server.limits.head_seconds
        return min(CROWDED_HEAD_SECONDS, seconds) if self._crowded else seconds

    def handshakeCompleted(self) -> None:
        """TLS is up; the first head may come."""
        self._deadline.set(self._first_head_seconds())

    def dataReceived(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._closing:
            self._lingered += len(data)
            if self._lingered > MAX_LINGER_BYTES:
                self.transport.pauseProducing()  # not an abort, whose reset could destroy the answer
            return
        if self.exchange is None:
            if not self._secure:  # else all records that came together have one turn (see tls)
                self._sender.begin_turn()
            if not self._buffer and self._answer_further(data):
                return
        self._buffer = self._buffer + data if self._buffer else data
        if self.exchange is None:
            self._take_requests()
        if len(self._buffer) > MAX_BUFFERED_BYTES and not self._reading_paused:
            self._reading_paused = True
            self.transport.pauseProducing()

    def readConnectionLost(self) -> None:
        """The client sends no more; what it asked for is still answered."""
        self._client_done = True
        if self._closing or self.exchange is None:
            self._shut()

    def writeConnectionLost(self) -> None:
        """Our own half-close."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002 - Twisted's signature
        """The connection is gone, whoever ended it."""
        self._closing = True
        self._deadline.cancel()
        self._sender.stop()
        if self.exchange is not None:
            abort, detail = self._failure or (AbortReason.CLIENT_GONE, "the client is gone")
            self._server.observer.record_abort(abort)
            self._end(self.exchange, detail)
        self._log.close()
        self._server.lost(self)

    # Requests.

    def _take_requests(self) -> None:
        """Answer what has arrived, in order, until something is in the way."""
        if self._taking:
            return
        self._taking = True
        while self._buffer and self.exchange is None and not self._closing and self._take_request():
            pass
        self._taking = False
        if self._reading_paused and len(self._buffer) <= MAX_BUFFERED_BYTES:
            self._reading_paused = False
            self.transport.resumeProducing()

    def _take_request(self) -> bool:
        """Take one request from the buffer and begin to answer it; False: there is none yet."""
        if self._buffer.startswith(b"\r\n"):  # RFC 9112 2.2: empty lines before a request are ignored
            self._buffer = _EMPTY_LINES.sub(b"", self._buffer, count=1)
        head = self._buffer
        try:
            length = find_head(head)
            if length is None:
                self._await_head()
                return False
            head, self._buffer = head[:length], head[length:]
            if not self._answer_further(head):
                self._begin(self._parser.parse(head))
        except ImageServiceError as error:
            self._refuse(error, head)
            return False
        return True

    def _answer_further(self, data: bytes) -> bool:
        """Answer a request that is the latest one but for its range; False: it has to be begun."""
        further = self._further
        if further is None or self._server.leaving or self._client_done:
            return False
        message = further.take(data)
        if message is None:
            return False
        exchange = self.exchange = further.exchange
        if self._sender.send(*message):
            self.exchange = None
            further.sent(self._sender.body_bytes)
            self._await_request()
        elif self.exchange is exchange:
            further.keep_sending()
            self._watch_for_stall()
        return True

    def _await_request(self) -> None:
        self._head_begun = False
        self._deadline.set(self._server.limits.idle_seconds)

    def _await_head(self) -> None:
        if self._client_done:
            self._shut()
        elif not self._head_begun and self._buffer:
            self._head_begun = True
            self._deadline.set(self._server.limits.head_seconds)

    def _begin(self, request: Request) -> None:
        self._further = None
        exchange = Exchange(request.method, request, self._server.clock.seconds())
        self.exchange = exchange
        self._answer(exchange, self._server.application.handle(request, self._address, crowded=self._crowded))

    def _answer(self, exchange: Exchange, answer: Answer | Deferred[Answer]) -> None:
        """Send an answer once it is there and has the slot that it needs."""
        self._deadline.clear()
        if isinstance(answer, Answer) and not is_download(answer.response):
            self._send(exchange, answer)
            return
        later = answer if isinstance(answer, Deferred) else succeed(answer)
        later.addCallback(self._admit, exchange)
        later.addCallback(self._send_later, exchange)
        later.addErrback(self._application_failed)

    def _admit(self, answer: Answer, exchange: Exchange) -> Answer | Deferred[Answer]:
        """Let a download wait for its slot; without one it becomes a refusal."""
        if exchange is not self.exchange or not is_download(answer.response):
            return answer
        slots = self._server.slots
        exchange.slot = slots.ask(exchange.began)
        return exchange.slot.granted.addCallback(
            lambda granted: answer if granted else attrs.evolve(answer, response=problem(slots.refusal()))
        )

    def _send_later(self, answer: Answer, exchange: Exchange) -> None:
        if exchange is self.exchange:  # else the client left in the meantime
            if not self._taking:  # else it had fired already, in the turn of its request
                self._sender.begin_turn()
            self._send(exchange, answer)
            self._take_requests()
        else:
            answer.ended()

    def _application_failed(self, failure: Failure) -> None:
        _log.failure("an answer could not be made", failure=failure)
        self.failed(AbortReason.INTERNAL_ERROR, "our own fault")

    def _refuse(self, error: ImageServiceError, head: bytes) -> None:
        """Answer what is no sound request; nothing behind it can be trusted to be one."""
        self._deadline.clear()
        method = "HEAD" if head.startswith(b"HEAD ") else ""
        exchange = Exchange(method, None, self._server.clock.seconds())
        self.exchange = exchange
        self._buffer = b""
        self._send(exchange, Answer(problem(error, head_only=bool(method))))

    # Answers.

    def _send(self, exchange: Exchange, answer: Answer) -> None:
        exchange.answer = answer
        server, request, response = self._server, exchange.request, answer.response
        wanted = request is not None and request.keep_alive
        exchange.keep_alive = wanted and self._may_go_on() and not server.leaving
        has_own_line = server.access_log.has_own_line(response.status)
        head = exchange.head(response, server.date_line(), needs_id=has_own_line)
        if answer.lease is not None and exchange.keep_alive and not has_own_line:
            self._further = FurtherRanges(server, self._parser, self._log, exchange, answer.lease)
        server.observer.record_first_byte(answer.subject.handler, server.clock.seconds() - exchange.began)
        if self._sender.send(head, response.body):
            self._finish(exchange)
        elif self.exchange is exchange:
            self._watch_for_stall()

    def _may_go_on(self) -> bool:
        nothing_follows = self._client_done and not self._buffer
        return not (self._crowded or nothing_follows or self._server.draining)

    def sent(self) -> None:
        """The sender is done, some time after it was asked to."""
        if self.exchange is not None:
            self._finish(self.exchange)
            self._take_requests()

    def failed(self, reason: AbortReason, detail: str) -> None:
        """The answer cannot be finished: a cut connection is the one honest sign of that."""
        self._failure = self._failure or (reason, detail)
        self._tcp().abortConnection()  # nothing happens if it is gone, while TLS would raise

    def _finish(self, exchange: Exchange) -> None:
        self._end(exchange, COMPLETE)
        if exchange.keep_alive and self._may_go_on():
            self._await_request()
        else:
            self._shut()

    def _end(self, exchange: Exchange, ended: str) -> None:
        """The one end that every exchange comes to."""
        self.exchange = None
        seconds = self._server.clock.seconds() - exchange.began
        answer = exchange.answer
        body_bytes = 0 if answer is None else max(0, self._sender.body_bytes)
        self._log.add(exchange, body_bytes, seconds, ended)
        self._server.observer.record_request(
            exchange.handler, exchange.method, exchange.status, seconds, body_bytes
        )
        if answer is not None:
            answer.ended()
        if exchange.slot is not None:
            self._server.slots.release(exchange.slot)

    # Deadlines and ends.

    def _deadline_passed(self) -> None:
        if self._closing:
            self._linger()
        elif self.exchange is not None:
            self._check_for_stall()
        elif self._head_begun and self._buffer:
            seconds = self._server.limits.head_seconds
            self._sender.begin_turn()
            error = RequestTimeout(f"the request head was not complete after {seconds:g} s")
            self._refuse(error, self._buffer)
        else:
            self._shut()

    def _watch_for_stall(self) -> None:
        self._progress.begin()
        self._deadline.set(self._stall_check_seconds())

    def _check_for_stall(self) -> None:
        if self._progress.seconds_without() >= self._server.limits.stall_seconds:
            self.failed(AbortReason.NO_PROGRESS, f"no progress for {self._server.limits.stall_seconds:g} s")
            return
        self._deadline.set(LINGER_SECONDS if self._closing else self._stall_check_seconds())

    def _stall_check_seconds(self) -> float:
        return self._server.limits.stall_seconds / _STALL_CHECKS

    def _tcp(self) -> Any:  # noqa: ANN401 - as transport
        return self.transport.transport if self._secure else self.transport

    def _linger(self) -> None:
        """Wait for as long as the client's system still takes what lies in the kernel's buffer, no longer.

        The end is a close, not an abort: the client itself may not have read what its system has.
        """
        if self._progress.outstanding:
            self._check_for_stall()
        else:
            self._tcp().loseConnection()

    def close_if_idle(self) -> None:
        """The service is going away: end now unless a request is being answered."""
        if self.exchange is None and not self._closing:
            self._shut()

    def _shut(self) -> None:
        """End the connection so that the client can read what it was sent.

        On plain TCP our side is closed and the client's awaited: closing with input unread would send a
        reset, which can destroy the answer. TLS does the same with its own closing alerts.
        """
        self._closing = True
        self._buffer = b""
        self._watch_for_stall()
        self._deadline.set(LINGER_SECONDS)
        if self._secure or self._client_done:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()


def _plain_address(host: str) -> str:
    """An IPv4 address as such, which a dual-stack listener gives as ``::ffff:192.0.2.1``."""
    return host.removeprefix("::ffff:") if "." in host else host
