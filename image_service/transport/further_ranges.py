"""Further ranges: the requests of a connection that differ from an earlier one in the numbers of Range alone.

A mount consists of them, so everything that they have in common is prepared once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.http.response import Response
from image_service.transport.admission import SMALL_BYTES
from image_service.transport.exchange import Exchange, PreparedResponse

if TYPE_CHECKING:
    from image_service.transport.access_log import ConnectionLog
    from image_service.transport.context import ConnectionContext
    from image_service.transport.exchange import Message, RangeResponder

_PARTIAL_CONTENT = 206


class FurtherRanges:
    """The further ranges of one connection, one after another; they share one exchange.

        respond ── the kernel accepts all of it at once ───────────── record_sent
           └────── it does not: start_sending ── the connection ends the exchange, as any other

    Args:
        context: what all connections share.
        log: the connection's.
        first: the exchange of the request that they are like.
        ranges: what its response brought.
    """

    __slots__ = (
        "_clock",
        "_context",
        "_date",
        "_last_lines",
        "_log",
        "_prepared",
        "_ranges",
        "_record",
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
        self._record = context.observer.get_recorder(first.handler, first.method, _PARTIAL_CONTENT)

    def respond(self, first: int, last: int) -> Message | None:
        """Return head and content of the response to an int-range; `exchange` is then its exchange.

        Returns:
            None: the request has to be handled as any other.
        """
        if last - first >= SMALL_BYTES:  # it needs a slot
            return None
        now = self._clock.seconds()
        message = self._ranges.respond(first, last, now)
        if message is None:
            return None
        exchange = self.exchange
        exchange.started, exchange.int_range, exchange.prepared = now, (first, last), self._prepared
        fields, body = message
        return self._date.partial_content(now) + fields + self._last_lines, body

    def start_sending(self) -> None:
        """Hold the mount: the kernel did not accept all of the response at once."""
        exchange = self.exchange
        self._context.observer.record_first_byte(exchange.handler, self._clock.seconds() - exchange.started)
        exchange.prepared = attrs.evolve(self._prepared, on_end=self._ranges.hold_mount())

    def record_sent(self, body_bytes: int) -> None:
        """Record a response that the kernel accepted at once, with so many bytes of content."""
        exchange = self.exchange
        self._record(self._clock.seconds() - exchange.started, body_bytes)
        self._log.add_range(exchange.subject, exchange.user_agent, exchange.request_id, body_bytes)
