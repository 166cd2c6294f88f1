"""Hands listening sockets over to the reactor, with TLS where configured, and drains them at shutdown."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.transport.build import with_tls

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory

    from image_service.app.shutdown import ShutdownHandler
    from image_service.settings.settings import Settings
    from image_service.transport.factory import ConnectionFactory
    from image_service.transport.listeners import Listeners

_log = Logger()


class PublicListeners:
    """The ports that clients connect to.

    Args:
        reactor: the one that runs.
        settings: of TLS and shutdown.
        listeners: what accepts, and its connections.
        factories: one for each port, that of ``LISTEN_PORT`` first.
        shutdown: knows the signal that began it.
    """

    def __init__(
        self,
        reactor: EPollReactor,
        settings: Settings,
        listeners: Listeners,
        factories: Sequence[ConnectionFactory],
        shutdown: ShutdownHandler,
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._listeners = listeners
        self._factories = factories
        self._shutdown = shutdown

    def adopt(self, sockets: Iterable[socket.socket]) -> list[IListeningPort]:
        """Accept connections of bound sockets, which are closed here.

        Args:
            sockets: one of each port, in order.

        Returns:
            for ``release``.
        """
        ports: list[IListeningPort] = []
        for listener, connections in zip(sockets, self._factories, strict=True):
            factory: IProtocolFactory = connections
            if connections.secure:
                factory = with_tls(self._reactor, self._settings.tls, connections)
            port = self._reactor.adoptStreamPort(listener.fileno(), listener.family, factory)
            listener.close()  # the reactor has a duplicate; with both open, the kernel would go on accepting
            self._listeners.add(port, connections)
            ports.append(port)
        return ports

    def release(self, ports: Iterable[IListeningPort]) -> None:
        """Accept no more connections of what ``adopt`` returned; those that are open stay."""
        for port in ports:
            self._listeners.remove(port)

    async def close(self) -> None:
        """Announce the shutdown, stop listening and drain."""
        _log.info("shutting down")
        process = self._settings.process
        # Only SIGTERM comes from a platform with a load balancer; at SIGINT a person waits.
        is_terminated = self._shutdown.signal_number == signal.SIGTERM
        delay_seconds = process.drain_delay_seconds if is_terminated else 0
        await self._listeners.close(delay_seconds, process.drain_timeout_seconds)
