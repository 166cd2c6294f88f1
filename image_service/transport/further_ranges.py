"""Further ranges: the requests of a connection that differ from the one before in the numbers of Range alone.

A mount consists of them, so what they have in common is prepared once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.transport.admission import SMALL_BYTES
from image_service.transport.exchange import Exchange

if TYPE_CHECKING:
    from image_service.images.extents import Extent
    from image_service.transport.access_log import ConnectionLog
    from image_service.transport.context import ConnectionContext
    from image_service.transport.exchange import Lease

_PARTIAL_CONTENT = 206


class FurtherRanges:
    """Answers them one after another, by one exchange, which each of them renews.

        take ── all of it went out at once ────────────────────────────────── sent
          └──── some is left: keep_sending ── the connection ends the exchange, as any other

    Args:
        context: what all connections share.
        log: the connection's.
        first: the exchange of that request, whose connection is kept alive.
        lease: what its answer brought.
    """

    __slots__ = (
        "_clock",
        "_context",
        "_count",
        "_date",
        "_last_lines",
        "_lease",
        "_log",
        "exchange",
    )

    def __init__(self, context: ConnectionContext, log: ConnectionLog, first: Exchange, lease: Lease) -> None:
        self._context = context
        self._clock = context.clock
        self._date = context.date
        self._log = log
        self._lease = lease
        self.exchange = Exchange(
            first.method, first.request, 0.0, request_id=first.request_id, keep_alive=True
        )
        self._last_lines = self.exchange.last_lines()
        self._count = context.observer.get_recorder(first.handler, first.method, _PARTIAL_CONTENT)

    def take(self, first: int, last: int) -> tuple[bytes, tuple[Extent, ...]] | None:
        """Take a request, if it is one of theirs.

        Args:
            first: offset of the first byte.
            last: offset of the last one.

        Returns:
            the answer, as head and body, which is that of ``exchange`` now; None: it has to be begun.
        """
        if last - first >= SMALL_BYTES:  # which has to wait for a slot
            return None
        exchange, now = self.exchange, self._clock.seconds()
        answer = self._lease.answer(first, last, now)
        if answer is None:
            return None
        exchange.began, exchange.part, exchange.answer = now, (first, last), answer
        response = answer.response
        return self._date.partial_content(now) + response.fields + self._last_lines, response.body

    def keep_sending(self) -> None:
        """Note that not all of the answer could be sent at once: its exchange ends as any other."""
        exchange = self.exchange
        self._context.observer.record_first_byte(exchange.handler, self._clock.seconds() - exchange.began)
        self._lease.keep_sending()

    def sent(self, body_bytes: int) -> None:
        """Note that all of the answer was sent at once.

        Args:
            body_bytes: of it.
        """
        exchange = self.exchange
        self._count(self._clock.seconds() - exchange.began, body_bytes)
        self._log.add_range(exchange.subject, exchange.user_agent, exchange.request_id, body_bytes)
        self._lease.end()
