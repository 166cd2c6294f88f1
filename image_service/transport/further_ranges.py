"""Further ranges: the requests of a connection that differ from the one before in the numbers of Range alone.

A mount consists of them, so what they have in common is prepared once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.transport.admission import SMALL_BYTES
from image_service.transport.exchange import Exchange

if TYPE_CHECKING:
    from image_service.http.head import HeadParser
    from image_service.images.extents import Extent
    from image_service.transport.access_log import ConnectionLog
    from image_service.transport.exchange import Lease
    from image_service.transport.factory import ConnectionFactory

_PARTIAL_CONTENT = 206


class FurtherRanges:
    """Answers them one after another, by one exchange, which each of them renews.

        take ── all of it went out at once ────────────────────────────────── sent
          └──── some is left: keep_sending ── the connection ends the exchange, as any other

    Args:
        server: what all connections share.
        parser: has parsed the request that theirs are like.
        log: the connection's.
        first: the exchange of that request, whose connection is kept alive.
        lease: what its answer brought.
    """

    __slots__ = (
        "_clock",
        "_count",
        "_last_lines",
        "_lease",
        "_log",
        "_parser",
        "_server",
        "exchange",
    )

    def __init__(
        self, server: ConnectionFactory, parser: HeadParser, log: ConnectionLog, first: Exchange, lease: Lease
    ) -> None:
        self._server = server
        self._clock = server.clock
        self._parser = parser
        self._log = log
        self._lease = lease
        self.exchange = Exchange(
            first.method, first.request, 0.0, request_id=first.request_id, keep_alive=True
        )
        self._last_lines = self.exchange.last_lines()
        self._count = server.observer.get_recorder(first.handler, first.method, _PARTIAL_CONTENT)

    def take(self, data: bytes) -> tuple[bytes, tuple[Extent, ...]] | None:
        """Take a request, if it is one of theirs.

        Args:
            data: what has arrived: a whole head and nothing else, or it is none of theirs.

        Returns:
            the answer, as head and body, which is that of ``exchange`` now; None: it has to be begun.
        """
        numbers = self._parser.further(data)
        if numbers is None or numbers[1] - numbers[0] >= SMALL_BYTES:  # which has to wait for a slot
            return None
        exchange, now = self.exchange, self._clock.seconds()
        answer = self._lease.answer(*numbers, now)
        if answer is None:
            return None
        exchange.began, exchange.part, exchange.answer = now, numbers, answer
        response = answer.response
        return self._server.partial_content(now) + response.fields + self._last_lines, response.body

    def keep_sending(self) -> None:
        """Note that not all of the answer could be sent at once: its exchange ends as any other."""
        exchange = self.exchange
        self._server.observer.record_first_byte(exchange.handler, self._clock.seconds() - exchange.began)
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
