"""The Protocol of a client's connection: I/O and deadlines.

The `RequestReader` parses the bytes; the `State` is the event that the connection waits for. Each state but
HANDLING has its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Protocol, connectionDone
from zope.interface import implementer

from image_service.core.errors import PlainHttp, RequestTimeout
from image_service.server.http.connection_state import State, check_transition
from image_service.server.http.head import Request
from image_service.server.http.problem import problem
from image_service.server.http.request_reader import END, BadRequest, RequestReader
from image_service.server.transport.deadline import Timeouts
from image_service.server.transport.dispatch import Dispatcher
from image_service.server.transport.exchanges.access_log import COMPLETE
from image_service.server.transport.exchanges.exchange import Exchange, PreparedResponse
from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure
from image_service.server.transport.sending.tcp import queued_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.tcp import Server
    from twisted.python.failure import Failure

    from image_service.server.http.request_reader import Event, RepeatedRange
    from image_service.server.transport.admission.connection_limit import Admission
    from image_service.server.transport.context import ConnectionContext

_IDLE, _HEAD = State.IDLE, State.HEAD  # looked up for each range
_IDLE_STATES = (State.IDLE, State.HEAD, State.HANDSHAKE)


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class Connection(Protocol):
    """One client's connection.

    Args:
        lost: called with this connection when it is gone.
        secure: True if it uses TLS.
    """

    # tcp.Server, or the TLS protocol over one: both have more than ITransport, neither says so by a type.
    transport: Any

    def __init__(
        self,
        context: ConnectionContext,
        lost: Callable[[Connection], None],
        admission: Admission,
        *,
        secure: bool,
    ) -> None:
        self._context = context
        self._shutdown = context.shutdown
        self._lost = lost
        self._secure = secure
        self.admission = admission
        self._state = State.HANDSHAKE if secure else State.HEAD
        self._reader = RequestReader()
        self.exchange: Exchange | None = None
        self._is_get_due = False  # the latest response was to a HEAD, which UEFI sends first
        self._in_events = False
        self._input_paused = False
        self._failure: tuple[AbortReason, str] | None = None  # why the connection is aborted

    # Calls of the transport.

    def connectionMade(self) -> None:
        """Accepted; on TLS the handshake follows."""
        context, transport = self._context, self.transport
        transport.setTcpNoDelay(True)  # else every response's last segment waits for Nagle
        self._sender = context.make_sender(transport, self, secure=self._secure)
        self._tcp = transport.transport if self._secure else transport
        self._handle = self._tcp.getHandle()
        self._timeouts = Timeouts(context.clock, context.limits, self._handle, self._deadline_passed)
        peer, admission = transport.getPeer().host, self.admission
        self._dispatcher = Dispatcher(
            context, self._handle, peer, admission, send=self._send_later, abort=self.abort
        )
        self._timeouts.await_first_head(self._state, overloaded=admission.overloaded)

    def handshakeCompleted(self) -> None:
        """TLS is established."""
        if self._state is State.HANDSHAKE:
            self._enter(State.HEAD)
            self._timeouts.await_first_head(self._state, overloaded=self.admission.overloaded)

    def refuse_plain_http(self, tcp: Server, data: bytes) -> None:
        """Respond, in plain HTTP, to a client whose first bytes are not TLS."""
        self.transport, self._secure = tcp, False
        self._sender = self._context.make_sender(tcp, self, secure=False)
        self._sender.begin_turn()
        self._enter(_HEAD)
        self._context.observer.record_handshake_failure(HandshakeFailure.PLAIN_HTTP)
        self._reader.receive(data)
        self._refuse(self._reader.reject(PlainHttp("this port requires TLS; use https://")))

    def dataReceived(self, data: bytes) -> None:
        """Bytes have arrived."""
        state = self._state
        if state is _IDLE or state is _HEAD:
            if not self._secure:  # else all records that arrive together share one turn (see tls)
                self._sender.begin_turn()
            event = self._reader.next_event(data)
            # Most requests are for a single range of a mount.
            if not (type(event) is tuple and not self._reader.buffer and self._answer_further(event)):
                self._handle_events(event)
        else:
            self._reader.receive(data)
            self._limit_input()

    def readConnectionLost(self) -> None:
        """The client has closed its side; the requests it has sent are still answered."""
        self._reader.receive_end()
        if self._state is State.CLOSING:
            self._close_transport()
        elif self._state in _IDLE_STATES:
            self.close()

    def writeConnectionLost(self) -> None:
        """Our own half-close."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection is gone, ended by either side."""
        is_unused = self._state in (State.HANDSHAKE, _HEAD) and not self._reader.buffer
        if self._secure and is_unused and self._failure is None:
            self.transport.lost_unused(reason, completed=self._state is _HEAD)
        self._enter(State.CLOSED)
        self._timeouts.cancel()
        self._sender.stop()
        if self.exchange is not None:
            abort, detail = self._failure or (AbortReason.CLIENT_GONE, "the client is gone")
            self._context.observer.record_abort(abort)
            self._dispatcher.end_exchange(self.exchange, self._sender.body_bytes, detail, abort)
            self.exchange = None
        self._dispatcher.close()
        self._lost(self)

    def _enter(self, state: State) -> None:
        self._state = check_transition(self._state, state)

    # Requests.

    def _read_requests(self) -> None:
        """Answer the requests that have arrived, unless `_handle_events` is doing so."""
        if self._reader.buffer and self._state in (_IDLE, _HEAD) and not self._in_events:
            self._handle_events(self._reader.next_event())

    def _handle_events(self, event: Event) -> None:
        """Answer the requests that have arrived, in order, until one of them takes time."""
        self._in_events = True
        while True:
            if type(event) is tuple:
                if not self._answer_further(event):
                    self._handle_request(self._reader.repeat(event))
            elif isinstance(event, Request):
                self._handle_request(event)
            elif isinstance(event, BadRequest):
                self._refuse(event)
            elif event is END:
                self.close()
            else:
                if self._state is _IDLE and self._reader.buffer:
                    self._enter(_HEAD)
                    self._timeouts.await_head()
                break
            if not self._reader.buffer or not (self._state is _IDLE or self._state is _HEAD):
                break
            event = self._reader.next_event()
        self._in_events = False
        if self._reader.buffer or self._input_paused:
            self._limit_input()

    def _limit_input(self) -> None:
        is_full = self._reader.is_full
        if is_full is not self._input_paused:
            self._input_paused = is_full
            if is_full:
                self.transport.pauseProducing()
            else:
                self.transport.resumeProducing()

    def _answer_further(self, repeated: RepeatedRange) -> bool:
        """Respond to a further range of the latest request; False: the request handler has to."""
        further = self._dispatcher.further
        if further is None or self._shutdown.announced or self._reader.is_client_closed:
            return False
        message = further.respond_to_range(repeated)
        if message is None:
            return False
        exchange = self.exchange = further.exchange
        head, body = message
        if self._sender.send(head, body):
            self.exchange = None
            self._await_request(further.record_sent(self._sender.body_bytes))
        elif self.exchange is exchange:  # else `response_sent` has been called meanwhile
            self._enter(State.SENDING)
            further.start_sending()
            self._timeouts.await_progress()
        return True

    def _handle_request(self, request: Request) -> None:
        exchange = self.exchange = Exchange(request.method, request, self._context.clock.seconds())
        self._timeouts.clear()
        prepared = self._dispatcher.get_repeated(exchange)
        if prepared is None:
            self._enter(State.HANDLING)
            prepared = self._dispatcher.dispatch(exchange, request)
        if prepared is not None:
            self._send(exchange, prepared)

    def _send_later(self, exchange: Exchange, prepared: PreparedResponse) -> None:
        if not self._in_events:  # else this is still the turn of the request
            self._sender.begin_turn()
        self._send(exchange, prepared)
        self._read_requests()

    def _refuse(self, bad: BadRequest) -> None:
        self._timeouts.clear()
        now = self._context.clock.seconds()
        exchange = self.exchange = Exchange(bad.method, None, now, invalid_target=bad.target)
        self._send(exchange, PreparedResponse(problem(bad.error, {}, head_only=bad.method == "HEAD")))

    # Responses.

    def _send(self, exchange: Exchange, prepared: PreparedResponse) -> None:
        self._enter(State.SENDING)
        is_last = self._shutdown.announced and exchange.method != "HEAD"
        can_continue = not is_last and self._can_continue(exchange)
        head = self._dispatcher.start_response(exchange, prepared, can_continue=can_continue)
        if self._sender.send(head, prepared.response.body):
            self._finish(exchange)
        elif self.exchange is exchange:  # else `response_sent` has been called meanwhile
            self._timeouts.await_progress()

    def _can_continue(self, exchange: Exchange) -> bool:
        is_drained = self._shutdown.draining and exchange.method != "HEAD"
        return not (self.admission.overloaded or self._reader.is_exhausted or is_drained)

    def response_sent(self) -> None:
        """The kernel has accepted all of the response, after `send` had returned."""
        if self.exchange is not None:
            self._finish(self.exchange)
            self._read_requests()

    def abort(self, reason: AbortReason, detail: str) -> None:
        """Abort the connection: the response cannot be completed, and must not look complete."""
        self._failure = self._failure or (reason, detail)
        self._tcp.abortConnection()  # does nothing if it is gone, while TLS would raise

    def _finish(self, exchange: Exchange) -> None:
        self.exchange = None
        self._dispatcher.end_exchange(exchange, self._sender.body_bytes, COMPLETE)
        self._is_get_due = exchange.method == "HEAD"
        if exchange.keep_alive and self._can_continue(exchange):
            self._await_request(self._context.clock.seconds())
            if self._shutdown.draining:
                self._timeouts.await_get()
        else:
            self.close()

    # Deadlines and the close.

    def _await_request(self, now: float) -> None:
        if self._state is not _IDLE:
            self._enter(_IDLE)
        self._timeouts.await_request(now)

    def _deadline_passed(self) -> None:
        limits = self._context.limits
        is_closing = self._state is State.CLOSING
        if is_closing and not queued_bytes(self._handle):
            self._tcp.loseConnection()  # an abort could destroy bytes that the client's system holds for it
        elif is_closing or self._state is State.SENDING:
            if self._timeouts.is_stalled(closing=is_closing):
                self.abort(AbortReason.NO_PROGRESS, f"no progress for {limits.stall_seconds:g} s")
        elif self._state is State.HEAD and self._reader.buffer and not self.admission.overloaded:
            self._sender.begin_turn()
            error = RequestTimeout(f"the request head was not complete after {limits.head_seconds:g} s")
            self._refuse(self._reader.reject(error))
        else:
            if self._state is State.HANDSHAKE and not self.admission.overloaded:
                self.transport.record_failure(HandshakeFailure.TIMEOUT)
            # If it is not idle, nothing was sent that the client might still read.
            self.close(at_once=self._state is not State.IDLE)

    def record_progress(self) -> None:
        """Record how much of the response in progress was sent."""
        if self.exchange is not None:
            self.exchange.record_sent(self._sender.body_bytes)

    @property
    def idle_since(self) -> float | None:
        """When it began to wait for a request, the clock's seconds; None: it does not wait for one."""
        return self._timeouts.idle_since(self._state)

    @property
    def unread_since(self) -> float | None:
        """When it began to wait for the client to take a response without a slot; None: it does not."""
        has_slot = self.exchange is not None and self.exchange.slot is not None
        return None if has_slot else self._timeouts.unread_since(self._state)

    def drain(self) -> None:
        """Close the connection if it waits for a request; after a HEAD the GET has some seconds to arrive."""
        if self.idle_since is None:
            return
        if self._is_get_due:
            self._timeouts.await_get()
        else:
            self.close()

    def close(self, *, at_once: bool = False) -> None:
        """Close the connection, on which no request is in progress; `at_once`: without lingering."""
        if self._state is not State.CLOSING:
            self._enter(State.CLOSING)
        self._reader.close()
        self._limit_input()
        self._close_transport(at_once=at_once)

    def _close_transport(self, *, at_once: bool = False) -> None:
        """Close our side so that the client can read all that was sent, unless `at_once`.

        On plain TCP the client's close is awaited: closing with input unread would send a reset, which can
        destroy the response. TLS does the same by its closing alerts.
        """
        self._timeouts.await_progress(closing=True)
        if at_once or self._secure or self._reader.is_client_closed:
            self.transport.loseConnection()
            if at_once:
                self._tcp.loseConnection()  # else TLS awaits the client's alert
        else:
            self.transport.loseWriteConnection()
