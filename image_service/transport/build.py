"""Builds what the connections of all listeners share from settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.files.page_cache import PageCache
from image_service.transport.access_log import AccessLog
from image_service.transport.admission import SLOT_TIMEOUT_SECONDS, Slots
from image_service.transport.context import ConnectionContext
from image_service.transport.factory import ConnectionFactory
from image_service.transport.sendfile_threads import THREADS, SendfileThreads
from image_service.transport.tls import ServerCertificate, TlsFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IProtocolFactory

    from image_service.concurrency.lifecycle import Lifecycle
    from image_service.settings.network import LimitSettings, LogSettings, TlsSettings
    from image_service.transport.admission import ConnectionCounter, SlotPool
    from image_service.transport.exchange import RequestHandler
    from image_service.transport.observer import Observer

DISK_THREADS = 8


@attrs.frozen
class Transport:
    """Makes factories of connections that share everything but their request handler.

    Args:
        slots: of downloads.
        make_context: makes the context of a listener's connections.
        counter: of the connections of all listeners.
    """

    slots: Slots
    make_context: Callable[..., ConnectionContext]
    counter: ConnectionCounter

    def make_factory(self, handler: RequestHandler, *, secure: bool = False) -> ConnectionFactory:
        """Make the factory of a listener's connections.

        Args:
            handler: of their requests.
            secure: True if the listener speaks TLS.
        """
        context = self.make_context(handler=handler)
        return ConnectionFactory(context, secure=secure, counter=self.counter)


def build_transport(  # noqa: PLR0913 - what processes share is by itself
    lifecycle: Lifecycle,
    settings: LimitSettings,
    log: LogSettings,
    *,
    slot_pool: SlotPool,
    connections: ConnectionCounter,
    observer: Observer,
) -> Transport:
    """Start the threads that read and send files, and make what connections share.

    Args:
        lifecycle: stops the threads.
        settings: timeouts and limits.
        log: which lines to log.
        slot_pool: slots for downloads.
        connections: counts those of all listeners.
        observer: records requests.
    """
    reactor = lifecycle.reactor
    slots = Slots(slot_pool, settings.downloads, SLOT_TIMEOUT_SECONDS, reactor, observer)
    make_context = partial(
        ConnectionContext,
        clock=reactor,
        page_cache=PageCache(reactor, lifecycle.start_thread_pool(DISK_THREADS, "disk")),
        sendfile_threads=SendfileThreads(reactor, lifecycle.start_thread_pool(THREADS, "sendfile")),
        access_log=AccessLog(reactor, each_range=log.ranges == "each"),
        limits=settings,
        slots=slots,
        observer=observer,
    )
    return Transport(slots, make_context, connections)


def with_tls(
    reactor: EPollReactor, settings: TlsSettings, connections: ConnectionFactory
) -> IProtocolFactory:
    """Return the factory with TLS below it; as it is if no certificate is configured.

    Raises:
        ConfigurationError: key and certificate are not a pair.
    """
    if settings.key_file is None or settings.certificate_file is None:
        return connections
    certificate = ServerCertificate(settings.key_file, settings.certificate_file, reactor)
    return TlsFactory(certificate, isClient=False, wrappedFactory=connections)
