"""The factories of connections, which also close them, and the objects that all factories share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory

from image_service.common.files.page_cache import PageCache
from image_service.server.transport.admission.connection_limit import ConnectionLimit
from image_service.server.transport.admission.slots import SLOT_TIMEOUT_SECONDS, Slots
from image_service.server.transport.connection import Connection
from image_service.server.transport.context import ConnectionContext
from image_service.server.transport.exchanges.access_log import AccessLog
from image_service.server.transport.exchanges.handshake_failures import HandshakeFailures
from image_service.server.transport.sending.observer import AbortReason
from image_service.server.transport.sending.sendfile_threads import THREADS, SendfileThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.address import IPv4Address, IPv6Address

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.transport.admission.slot_pool import SlotPool
    from image_service.server.transport.exchanges.exchange import RequestHandler
    from image_service.server.transport.exchanges.failures import RecentFailures
    from image_service.server.transport.sending.observer import Observer
    from image_service.settings.settings import Settings

DISK_THREADS = 8


@attrs.define(eq=False)
class ConnectionFactory(Factory):
    """Makes connections and ends them.

    Args:
        secure: True if they use TLS.
    """

    context: ConnectionContext
    secure: bool = False
    connections: set[Connection] = attrs.field(factory=set, init=False)
    _drained: Deferred[None] | None = attrs.field(default=None, init=False)

    noisy = False

    def __attrs_post_init__(self) -> None:
        self.context.connection_limit.listeners.append(self.connections)

    def buildProtocol(self, addr: IPv4Address | IPv6Address) -> Connection | None:  # type: ignore[override] # all are TCP
        """Accept a connection, or close it if it is not admitted."""
        limit = self.context.connection_limit
        admission = limit.admit(addr.host)
        if admission is None:
            return None
        connection = Connection(self.context, self._lost, admission, secure=self.secure)
        self.connections.add(connection)
        limit.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self.connections.remove(connection)
        self.context.connection_limit.remove(connection)
        if self._drained is not None and not self.connections:
            self._drained.callback(None)

    def handlers(self) -> Iterator[str]:
        """Return the handler of each request in progress but probes; empty as long as it has no response."""
        exchanges = (connection.exchange for connection in self.connections)
        return (each.subject.handler for each in exchanges if each is not None and not each.is_probe)

    def record_progress(self) -> None:
        """Record how much of each response in progress was sent."""
        for connection in self.connections:
            connection.record_progress()

    def announce_shutdown(self) -> None:
        """Make each response from now on, except to a HEAD, the last one of its connection."""
        self.context.shutdown.announced = True

    async def drain(self, seconds: float) -> None:
        """Close idle connections, and the others as their responses end; abort the rest after `seconds`."""
        self.announce_shutdown()
        self.context.shutdown.draining = True
        for connection in tuple(self.connections):
            connection.drain()
        if self.connections:
            self._drained = Deferred()
            timer = self.context.clock.callLater(seconds, self.abort)
            await self._drained
            if timer.active():
                timer.cancel()

    def abort(self) -> None:
        """Abort every connection, in whatever state it is."""
        for connection in tuple(self.connections):
            connection.abort(AbortReason.SHUTDOWN, "the service is shutting down")


@attrs.frozen
class Transport:
    """Makes factories of connections that share everything but their request handler."""

    slots: Slots
    make_context: Callable[..., ConnectionContext]

    def make_factory(self, handler: RequestHandler, *, secure: bool = False) -> ConnectionFactory:
        """Return the factory of a listener's connections; `secure` if they use TLS."""
        context = self.make_context(handler=handler)
        return ConnectionFactory(context, secure=secure)


def build_transport(
    parts: PartsStack,
    settings: Settings,
    *,
    slot_pool: SlotPool,
    observer: Observer,
    failures: RecentFailures,
) -> Transport:
    """Start the threads that read and send files, and make the objects that connections share."""
    reactor = parts.reactor
    limits, proxies = settings.limits, settings.listen.trusted_proxies
    slots = Slots(
        slot_pool,
        limits.downloads,
        SLOT_TIMEOUT_SECONDS,
        min_rate=limits.min_download_rate,
        clock=reactor,
        observer=observer,
    )
    handshake_failures = HandshakeFailures(reactor, observer, failures)
    parts.callback(handshake_failures.close)
    make_context = partial(
        ConnectionContext,
        clock=reactor,
        page_cache=PageCache(reactor, parts.start_thread_pool(DISK_THREADS, "disk")),
        sendfile_threads=SendfileThreads(reactor, parts.start_thread_pool(THREADS, "sendfile")),
        access_log=AccessLog(reactor, each_range=settings.log.ranges == "each"),
        limits=limits,
        slots=slots,
        connection_limit=ConnectionLimit(limits, proxies, slot_pool.counts, reactor, observer),
        observer=observer,
        handshake_failures=handshake_failures,
        failures=failures,
        proxies=proxies,
    )
    return Transport(slots, make_context)
