"""What all connections of a listener share, and how they end together."""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory

from image_service.http.dates import format_http_date
from image_service.http.response import STATUS_LINES
from image_service.transport.admission import ConnectionCounter
from image_service.transport.connection import Connection
from image_service.transport.observer import NULL_OBSERVER, AbortReason, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.interfaces import IReactorTime

    from image_service.files.page_cache import PageCache
    from image_service.transport.access_log import AccessLog
    from image_service.transport.admission import Slots
    from image_service.transport.exchange import Application
    from image_service.transport.observer import Observer
    from image_service.transport.sendfile_threads import SendfileThreads

CROWD_RESERVE = 64
"""Connections beyond the limit that are still accepted, to be told so, and for probes."""


@attrs.frozen
class Limits:
    """Deadlines in seconds and the number of connections.

    Args:
        handshake_seconds: for the TLS handshake.
        head_seconds: from the accept, or a head's first byte, to its end.
        idle_seconds: between two requests.
        stall_seconds: without the client acknowledging a byte of an answer.
        connections: beyond them only probes are answered.
    """

    handshake_seconds: float = 15
    head_seconds: float = 5
    idle_seconds: float = 60
    stall_seconds: float = 120
    connections: int = 8192


@attrs.define(eq=False)
class ConnectionFactory(Factory):
    """Makes connections and holds what they share.

    Args:
        clock: the reactor's.
        application: answers requests.
        page_cache: keeps the disk out of the reactor.
        lanes: for clients that read quickly.
        access_log: where requests are logged.
        limits: deadlines and the number of connections.
        slots: for downloads; those of the other listeners too.
        observer: counts.
        secure: whether TLS lies below.
        headcount: of all listeners' connections, which the limit is for.
    """

    clock: IReactorTime
    application: Application
    page_cache: PageCache
    lanes: SendfileThreads
    access_log: AccessLog
    limits: Limits
    slots: Slots
    observer: Observer = NULL_OBSERVER
    secure: bool = False
    headcount: ConnectionCounter = attrs.field(factory=ConnectionCounter)
    leaving: bool = attrs.field(default=False, init=False)
    draining: bool = attrs.field(default=False, init=False)
    connections: set[Connection] = attrs.field(factory=set, init=False)
    _drained: Deferred[None] | None = attrs.field(default=None, init=False)
    _second: int = attrs.field(default=-1, init=False)  # of the Date below
    _date_line: bytes = attrs.field(default=b"", init=False)
    _partial_content: bytes = attrs.field(default=b"", init=False)

    noisy = False

    def buildProtocol(self, addr: object) -> Connection | None:  # noqa: ARG002 - Twisted's signature
        """Take a connection, or close it at once when even the reserve is used up."""
        count = self.headcount.total
        if count >= self.limits.connections + CROWD_RESERVE:
            self.observer.record_refusal(RefusalReason.CONNECTIONS)
            return None
        connection = Connection(self, secure=self.secure, crowded=count >= self.limits.connections)
        self.connections.add(connection)
        self.headcount.change(1)
        return connection

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.remove(connection)
        self.headcount.change(-1)
        if self._drained is not None and not self.connections:
            self._drained.callback(None)

    def handlers(self) -> Iterator[str]:
        """The handler of each request that is being answered; empty where no answer is there yet."""
        exchanges = (connection.exchange for connection in self.connections)
        return (exchange.handler for exchange in exchanges if exchange is not None)

    def announce_end(self) -> None:
        """Let every answer that begins from now on say that it is the last one of its connection.

        What an earlier answer has promised is kept: to close where the next request may be under way already
        would fail it, and its client with it.
        """
        self.leaving = True

    async def drain(self, seconds: float) -> None:
        """Go away: end what is idle, give answers that are under way a while, then cut them.

        Args:
            seconds: how long they may go on.
        """
        self.leaving = self.draining = True
        for connection in tuple(self.connections):
            connection.close_if_idle()
        if self.connections:
            self._drained = Deferred()
            timer = self.clock.callLater(seconds, self.cut)
            await self._drained
            if timer.active():
                timer.cancel()

    def cut(self) -> None:
        """Abort every connection."""
        for connection in tuple(self.connections):
            connection.failed(AbortReason.SHUTDOWN, "the service is going away")

    def date_line(self) -> bytes:
        """The Date field of this second."""
        self._keep_date(self.clock.seconds())
        return self._date_line

    def partial_content(self, now: float) -> bytes:
        """The status line of a 206, and the Date field.

        Args:
            now: the clock's seconds.
        """
        if not self._second <= now < self._second + 1:
            self._keep_date(now)
        return self._partial_content

    def _keep_date(self, now: float) -> None:
        second = floor(now)
        if second != self._second:
            self._second = second
            self._date_line = f"Date: {format_http_date(datetime.fromtimestamp(second, UTC))}\r\n".encode()
            self._partial_content = STATUS_LINES[206] + self._date_line
