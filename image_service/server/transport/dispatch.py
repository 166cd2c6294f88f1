"""The exchanges of a connection: gets the response to each request, and records it.

A response comes from the request handler, or from the one before it.

A mount consists of requests that differ from an earlier one in the numbers of Range alone, so everything that
they have in common is prepared once.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from image_service.core.errors import Unavailable
from image_service.server.http.forwarded import client_address
from image_service.server.http.problem import problem
from image_service.server.http.ranges import has_conversion
from image_service.server.http.response import Response
from image_service.server.transport.absent_content import WAIT_SECONDS, await_beginning, find_absent
from image_service.server.transport.admission.addresses import address_group, unmapped
from image_service.server.transport.admission.rate import DownloadRate
from image_service.server.transport.admission.slot_queue import Slot
from image_service.server.transport.admission.slots import SMALL_BYTES, is_download
from image_service.server.transport.exchanges.access_log import ConnectionLog
from image_service.server.transport.exchanges.exchange import Exchange, PreparedResponse
from image_service.server.transport.sending.observer import AbortReason

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from twisted.python.failure import Failure

    from image_service.server.http.head import Request
    from image_service.server.http.request_reader import RepeatedRange
    from image_service.server.transport.admission.connection_limit import Admission
    from image_service.server.transport.context import ConnectionContext
    from image_service.server.transport.exchanges.exchange import Message, RangeResponder

_log = Logger()

_PARTIAL_CONTENT = 206


class Dispatcher:
    """Gets the response to each request of one connection, and records it.

    Args:
        address: of the client, as its socket has it.
        send: called with a response that was not known at once, unless `abort` is.
        abort: called if there can be no response.
    """

    __slots__ = (
        "_abort",
        "_address",
        "_admission",
        "_context",
        "_log",
        "_repeatable",
        "_send",
        "_socket",
        "further",
    )

    def __init__(  # noqa: PLR0913 - the connection, and what it does
        self,
        context: ConnectionContext,
        connection: socket.socket,
        address: str,
        admission: Admission,
        *,
        send: Callable[[Exchange, PreparedResponse], None],
        abort: Callable[[AbortReason, str], None],
    ) -> None:
        self._context = context
        self._socket = connection
        self._address = unmapped(address)
        self._log = ConnectionLog(context.access_log, self._address)
        self._admission = admission
        self._send = send
        self._abort = abort
        self.further: FurtherRanges | None = None
        """Of the latest parsed request."""
        self._repeatable: tuple[Exchange, PreparedResponse, Callable[[float], bool]] | None = None  # same

    def get_repeated(self, exchange: Exchange) -> PreparedResponse | None:
        """Return the latest response if it answers this request too, which then has that one's identifier."""
        if self._repeatable is not None:
            latest, prepared, is_current = self._repeatable
            if latest.request is exchange.request and is_current(exchange.started):
                exchange.is_repeated, exchange.request_id = True, latest.request_id
                return prepared
        return None

    def dispatch(self, exchange: Exchange, request: Request) -> PreparedResponse | None:
        """Have the request handler respond; None if the response is sent later, or the connection aborted.

        A download waits for its slot, content for its origin. Without one of these it is refused.
        """
        self.further = self._repeatable = None
        context = self._context
        client = client_address(self._address, request.headers, context.proxies)
        group = address_group(client)
        if group != self._admission.group:
            context.connection_limit.set_group(self._admission, group)
        prepared = context.handler.handle(request, client, overloaded=self._admission.overloaded)
        if (
            isinstance(prepared, PreparedResponse)
            and not is_download(prepared.response)
            and find_absent(prepared.response.body) is None
        ):
            return prepared
        later: Deferred[PreparedResponse] = prepared if isinstance(prepared, Deferred) else succeed(prepared)
        later.addCallback(self._await_content, exchange)
        later.addCallback(self._await_slot, exchange)

        def send(response: PreparedResponse) -> None:
            if exchange.is_over:  # the client has left
                response.on_end()
            else:
                self._send(exchange, response)

        def failed(failure: Failure) -> None:
            _log.failure("unexpected error while answering a request", failure=failure)
            self._abort(AbortReason.INTERNAL_ERROR, "internal error")

        later.addCallback(send).addErrback(failed)
        return None

    def _await_content(
        self, prepared: PreparedResponse, exchange: Exchange
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        body = prepared.response.body
        if exchange.is_over or find_absent(body) is None:
            return prepared
        clock = self._context.clock
        awaited = Deferred.fromCoroutine(await_beginning(body, clock, exchange.started + WAIT_SECONDS))

        def refuse(failure: Failure) -> PreparedResponse:
            failure.trap(Unavailable)
            error = cast("Unavailable", failure.value)
            return attrs.evolve(prepared, response=problem(error, exchange.headers))

        return awaited.addCallbacks(lambda _: prepared, refuse)

    def _await_slot(
        self, prepared: PreparedResponse, exchange: Exchange
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        if exchange.is_over or not is_download(prepared.response):
            return prepared
        slots = self._context.slots
        rate = DownloadRate(self._socket)
        exchange.slot = slot = Slot(self._admission.group, prepared.subject.is_public, rate, self._abort)
        slots.acquire(slot, exchange.started)
        return slot.granted.addCallback(
            lambda granted: (
                prepared
                if granted
                else attrs.evolve(prepared, response=problem(slots.refusal(), exchange.headers))
            )
        )

    def start_response(self, exchange: Exchange, prepared: PreparedResponse, *, can_continue: bool) -> bytes:
        """Record the start of a response, and return its head.

        `can_continue` is False if the connection closes, whatever the request says.
        """
        context, request, response = self._context, exchange.request, prepared.response
        now = context.clock.seconds()
        exchange.prepared = prepared
        if response.status < HTTPStatus.BAD_REQUEST and not prepared.subject.is_public:
            self._admission.is_proven = True
        must_close = response.problem is not None and response.problem.must_close
        exchange.keep_alive = can_continue and not must_close and request is not None and request.keep_alive
        has_own_line = context.access_log.has_own_line(exchange, response.status)
        head = exchange.render_head(response, context.date.line(), needs_id=has_own_line)
        if request is not None and exchange.keep_alive:
            if prepared.ranges is not None and not has_own_line:
                self.further = FurtherRanges(context, self._log, exchange, prepared.ranges)
            elif prepared.is_current is not None and self._repeatable is None:
                self._repeatable = exchange, prepared, prepared.is_current
        warnings = [*prepared.warnings, *_range_warnings(exchange)]
        if warnings and response.problem is None:
            client = client_address(self._address, exchange.headers, context.proxies)
            context.failures.record_warnings(exchange, client, warnings)
        context.observer.record_first_byte(prepared.subject.handler, now - exchange.started)
        return head

    def close(self) -> None:
        """Complete the access log: the connection is gone."""
        self._log.close()

    def end_exchange(
        self, exchange: Exchange, body_bytes: int, outcome: str, abort: AbortReason | None = None
    ) -> None:
        """Record the end of an exchange, and release its slot and its mount.

        Args:
            body_bytes: of content, accepted by the kernel; negative if not even the head was.
            outcome: `COMPLETE`, or the reason of the abort in words.
            abort: why it was not sent to its end; None: it was.
        """
        exchange.is_over = True
        context, prepared = self._context, exchange.prepared
        seconds = context.clock.seconds() - exchange.started
        body_bytes = 0 if prepared is None else max(0, body_bytes)
        self._log.add(exchange, body_bytes, seconds, outcome, abort)
        context.observer.record_request(
            exchange.subject.handler, exchange.method, exchange.status, seconds, body_bytes
        )
        if exchange.problem is not None or abort is not None:
            client = client_address(self._address, exchange.headers, context.proxies)
            context.failures.record_exchange(exchange, client, outcome, abort)
        exchange.record_sent(body_bytes)
        if prepared is not None:
            prepared.on_end()
        if exchange.slot is not None:
            context.slots.release(exchange.slot)


def _range_warnings(exchange: Exchange) -> Iterator[str]:
    """Yield the fault of a client whose Range header is malformed; it gets the whole file."""
    requested = exchange.headers.get("range", "")
    if exchange.status == HTTPStatus.OK and has_conversion(requested):
        yield (
            f"the client asked for {requested}, without numbers, and got the whole file for one read: it is"
            " an iPXE whose printf lacks %zu, as some 32-bit builds; rebuild iPXE for x86_64"
            " (bin-x86_64-pcbios or bin-x86_64-efi)"
        )


class FurtherRanges:
    """The further ranges of one connection, one after another; they share one exchange.

        respond_to_range ── the kernel accepts all of it at once ───────── record_sent
               └────── it does not: start_sending ── the connection ends the exchange, as any other

    Args:
        first: the exchange of the request that they are like.
    """

    __slots__ = (
        "_clock",
        "_context",
        "_date",
        "_last_lines",
        "_log",
        "_logged",
        "_prepared",
        "_ranges",
        "_record",
        "_record_read",
        "exchange",
    )

    def __init__(
        self, context: ConnectionContext, log: ConnectionLog, first: Exchange, ranges: RangeResponder
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._date = context.date
        self._log = log
        self._ranges = ranges
        self._prepared = PreparedResponse(Response(_PARTIAL_CONTENT, b""), first.subject)
        self.exchange = Exchange(
            first.method,
            first.request,
            0.0,
            prepared=self._prepared,
            request_id=first.request_id,
            keep_alive=True,
        )
        self._last_lines = self.exchange.render_last_lines()
        self._logged = first.subject, first.user_agent, first.request_id
        self._record = context.observer.get_recorder(first.subject.handler, first.method, _PARTIAL_CONTENT)
        self._record_read = ranges.record_sent

    def respond_to_range(self, int_range: RepeatedRange) -> Message | None:
        """Return head and content of the response to a range; `exchange` is then its exchange.

        Returns:
            None: the request has to be handled as any other.
        """
        first, last = int_range
        if last - first >= SMALL_BYTES:  # it needs a slot
            return None
        now, ranges = self._clock.seconds(), self._ranges
        message = ranges.respond_to_range(first, last, now)
        if message is None or (ranges.is_remote and find_absent(message[1]) is not None):
            return None
        exchange = self.exchange
        exchange.started, exchange.int_range, exchange.prepared = now, int_range, self._prepared
        fields, body = message
        return self._date.partial_content() + fields + self._last_lines, body

    def start_sending(self) -> None:
        """Hold the mount: the kernel did not accept all of the response at once."""
        exchange = self.exchange
        self._context.observer.record_first_byte(
            exchange.subject.handler, self._clock.seconds() - exchange.started
        )
        assert exchange.int_range is not None  # noqa: S101 - `respond_to_range` has set it
        on_sent = self._ranges.follow(*exchange.int_range)
        prepared, release = self._prepared, self._ranges.hold_mount()
        exchange.prepared = PreparedResponse(prepared.response, prepared.subject, release, on_sent=on_sent)

    def record_sent(self, body_bytes: int) -> float:
        """Record a response that the kernel accepted at once, with so many bytes of content.

        Returns:
            the clock's seconds now.
        """
        exchange, now = self.exchange, self._clock.seconds()
        assert exchange.int_range is not None  # noqa: S101 - `respond_to_range` has set it
        self._record_read(exchange.int_range[0], body_bytes)
        self._record(now - exchange.started, body_bytes)
        subject, user_agent, request_id = self._logged
        self._log.add_to_summary(subject, user_agent, request_id, body_bytes)
        return now
