"""The context that all connections of a listener share."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from math import floor
from typing import TYPE_CHECKING, Any

import attrs

from image_service.server.http.dates import format_http_date
from image_service.server.http.response import STATUS_LINES
from image_service.server.transport.sending.sendfile_sender import SendfileSender
from image_service.server.transport.sending.tls_sender import TlsSender

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.files.page_cache import PageCache
    from image_service.server.http.forwarded import Network
    from image_service.server.transport.admission.connection_limit import ConnectionLimit
    from image_service.server.transport.admission.slots import Slots
    from image_service.server.transport.exchanges.access_log import AccessLog
    from image_service.server.transport.exchanges.exchange import RequestHandler
    from image_service.server.transport.exchanges.failures import RecentFailures
    from image_service.server.transport.exchanges.handshake_failures import HandshakeFailures
    from image_service.server.transport.sending.observer import Observer
    from image_service.server.transport.sending.sender import Sender, SenderCallbacks
    from image_service.server.transport.sending.sendfile_threads import SendfileThreads
    from image_service.settings.network import LimitSettings


@attrs.define
class ShutdownState:
    """The progress of a listener's shutdown.

    Args:
        announced: each response from now on is its connection's last one, and says so. What an earlier
            response has promised is kept: closing where the next request may be under way would fail it.
            A response to a HEAD is not the last one: UEFI sends its GET next, and loses it on a closed
            connection.
        draining: connections close as soon as they are idle; after a HEAD they wait `GET_SECONDS` first.
    """

    announced: bool = False
    draining: bool = False


class DateField:
    """The Date field of the current second, rendered once.

    Args:
        wall_clock: returns seconds since the epoch, which may go backwards.
    """

    __slots__ = ("_line", "_partial_content", "_second", "_wall_clock")

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._second = -1
        self._line = self._partial_content = b""

    def line(self) -> bytes:
        """Return the Date field line of this second."""
        now = self._wall_clock()
        if not self._second <= now < self._second + 1:
            self._render(now)
        return self._line

    def partial_content(self) -> bytes:
        """Return the status line of a 206 with the field line behind it."""
        now = self._wall_clock()
        if not self._second <= now < self._second + 1:
            self._render(now)
        return self._partial_content

    def _render(self, now: float) -> None:
        self._second = floor(now)
        date = format_http_date(datetime.fromtimestamp(self._second, UTC))
        self._line = f"Date: {date}\r\n".encode("ascii")
        self._partial_content = STATUS_LINES[206] + self._line


@attrs.frozen(eq=False, kw_only=True)
class ConnectionContext:
    """Objects that all connections of a listener share.

    Args:
        page_cache: reports which bytes of files are in memory, and reads the others in threads.
        sendfile_threads: for fast clients.
        limits: deadlines and the number of connections.
        slots: for downloads; shared with the other listeners.
        connection_limit: shared with them too.
        handshake_failures: of TLS; shared with them too.
        failures: of requests; shared with them too.
        proxies: networks of the proxies that are trusted to name the client's address.
    """

    clock: IReactorTime
    handler: RequestHandler
    page_cache: PageCache
    sendfile_threads: SendfileThreads
    access_log: AccessLog
    limits: LimitSettings
    slots: Slots
    connection_limit: ConnectionLimit
    observer: Observer
    handshake_failures: HandshakeFailures
    failures: RecentFailures
    proxies: Collection[Network] = ()
    shutdown: ShutdownState = attrs.field(factory=ShutdownState, init=False)
    date: DateField = attrs.field(factory=DateField, init=False)

    def make_sender(self, transport: Any, callbacks: SenderCallbacks, *, secure: bool) -> Sender:  # noqa: ANN401 - as that of a connection
        """Return the sender of a connection."""
        sent = self.observer.sent
        if secure:
            return TlsSender(transport, self.page_cache, callbacks, sent, clock=self.clock)
        threads = self.sendfile_threads
        return SendfileSender(transport, self.page_cache, callbacks, sent, threads=threads, clock=self.clock)
