"""All listeners, and their shutdown: announced, then drained, at last aborted."""

from __future__ import annotations

import errno
from itertools import chain
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.logger import Logger

from image_service.core.errors import ConfigurationError
from image_service.settings.parsers import Address

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IReactorTime

    from image_service.server.transport.factory import ConnectionFactory

_log = Logger()


class Listeners:
    """The ports that clients connect to, with their factories."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._ports: list[IListeningPort] = []
        self._factories: list[ConnectionFactory] = []
        self._pause: Deferred[None] | None = None
        self._forced = False
        self.shutting_down = False
        """True once the shutdown has begun: load balancers are to send no more clients."""

    def add(self, port: IListeningPort, factory: ConnectionFactory) -> None:
        """Add a listening port, and the factory of its connections, which other ports may share."""
        self._ports.append(port)
        if factory not in self._factories:
            self._factories.append(factory)

    def adopt(
        self,
        reactor: EPollReactor,
        listener: socket.socket,
        factory: ConnectionFactory,
        protocol_factory: IProtocolFactory,
    ) -> IListeningPort:
        """Accept the connections of a listening socket, which is closed here.

        `protocol_factory` is `factory`, or a factory that puts TLS below its connections.
        """
        port: IListeningPort = reactor.adoptStreamPort(listener.fileno(), listener.family, protocol_factory)
        listener.close()  # the reactor has a duplicate; with both open, the kernel would go on accepting
        self.add(port, factory)
        return port

    def remove(self, port: IListeningPort) -> None:
        """Stop a port, if it has not been removed yet; its connections stay."""
        if port in self._ports:
            self._ports.remove(port)
            port.stopListening()

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return sum(len(factory.connections) for factory in self._factories)

    def handlers(self) -> Iterator[str]:
        """Return the handler of each request in progress; empty as long as it has no response."""
        return chain.from_iterable(factory.handlers() for factory in self._factories)

    def record_progress(self) -> None:
        """Record how much of each response in progress was sent."""
        for factory in self._factories:
            factory.record_progress()

    async def close(self, delay_seconds: float, timeout_seconds: float) -> None:
        """Shut down.

        Args:
            delay_seconds: how long requests are still accepted, the last one on each connection.
            timeout_seconds: how long responses may then take.
        """
        self.shutting_down = True
        for factory in self._factories:
            factory.announce_shutdown()
        if self._ports and not self._forced:
            self._pause = Deferred(lambda pause: pause.callback(None))
            timer = self._clock.callLater(delay_seconds, self._pause.callback, None)
            await self._pause
            self._pause = None
            if timer.active():
                timer.cancel()
        await gatherResults([maybeDeferred(port.stopListening) for port in self._ports])
        seconds = 0 if self._forced else timeout_seconds
        await gatherResults([Deferred.fromCoroutine(factory.drain(seconds)) for factory in self._factories])

    def force(self) -> None:
        """Wait no longer, neither for the delay nor for responses."""
        self._forced = True
        if self._pause is not None:
            self._pause.cancel()
        for factory in self._factories:
            if factory.context.shutdown.draining:
                factory.abort()


def log_listening(host: str, port: int, purpose: str) -> None:
    """Log that clients can connect to a socket.

    Args:
        host: IP literal.
        port: bound.
        purpose: the protocol and the content, such as ``HTTPS: images``.
    """
    _log.info("listening on {address} ({purpose})", address=Address(host, port).netloc, purpose=purpose)


def cannot_listen(
    variable: str, host: str | None, port: int, error: OSError, *, address_variable: str | None = None
) -> ConfigurationError:
    """Return the error for a socket that cannot be bound, with the cause and the remedy.

    Args:
        variable: that configures the port.
        host: IP literal; None: all addresses.
        port: to be bound; 0: any.
        address_variable: that configures the host; None: `variable` does.
    """
    address = Address(host, port).netloc if host and not address_variable else str(port)
    where = f"{host} port {port}" if host else f"port {port}"
    match error.errno:
        case errno.EADDRINUSE:
            fault = f"{where} is in use by another process; choose another port"
        case errno.EACCES | errno.EPERM:
            fault = (
                f"this process has no permission for {where}; choose a port from 1024 on, or grant the "
                f"capability CAP_NET_BIND_SERVICE"
            )
        case errno.EADDRNOTAVAIL:
            variable, address = (address_variable, str(host)) if address_variable else (variable, address)
            fault = f"this host has no interface with the address {host}; choose an address that it has"
        case _:
            fault = f"cannot listen on {where}: {error.strerror}"
    return ConfigurationError(f"{variable}={address}: {fault}")
