"""Listeners: their ports, and how all of them go away: announced, then closed, and cut at last."""

from __future__ import annotations

import errno
import socket
from itertools import chain
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.interfaces import IListeningPort, IReactorTime

    from image_service.transport.factory import ConnectionFactory


BACKLOG = 1024
UNSENT_BYTES = 256 * 1024
"""What the kernel keeps of an answer beyond what is on its way to the client."""


def bind_together(port: int, processes: int) -> list[socket.socket]:
    """Take a port for several processes: the kernel spreads connections over the sockets evenly.

    Args:
        port: 0: any that is free.
        processes: how many.

    Returns:
        sockets that listen, one for each.

    Raises:
        OSError: the port cannot be had.
    """
    first = bind(port)
    if processes == 1:
        return [first]
    # Only now: bound with it, it would be shared with another service that has the port already.
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    number = first.getsockname()[1]
    return [first, *(bind(number, shared=True) for _ in range(1, processes))]


def bind(port: int, *, shared: bool = False) -> socket.socket:
    """Take a port on IPv6 and IPv4 at once, or on IPv4 where there is no IPv6.

    Args:
        port: 0: any that is free.
        shared: with other sockets that are.

    Returns:
        a socket that listens.

    Raises:
        OSError: the port cannot be had.
    """
    listener = _bind_dual_stack(port, shared=shared) or socket.create_server(
        ("0.0.0.0", port),  # noqa: S104 - as it says
        backlog=BACKLOG,
        reuse_port=shared,
    )
    # Accepted sockets inherit it. Without it the kernel takes up to 4 MiB for each client that does not read.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listener.setblocking(False)  # noqa: FBT003 - its signature
    return listener


def _bind_dual_stack(port: int, *, shared: bool) -> socket.socket | None:
    if not socket.has_dualstack_ipv6():
        return None
    try:
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG, reuse_port=shared
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return None


class Listeners:
    """Everything that clients connect to.

    Args:
        clock: the reactor's.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._ports: list[IListeningPort] = []
        self._factories: list[ConnectionFactory] = []
        self._pause: Deferred[None] | None = None
        self._in_haste = False
        self.leaving = False
        """Whether the end has begun: whoever balances load is to send nobody any more."""

    def add(self, port: IListeningPort, factory: ConnectionFactory) -> None:
        """Take a listener.

        Args:
            port: which listens.
            factory: makes its connections; those of other ports too, perhaps.
        """
        self._ports.append(port)
        if factory not in self._factories:
            self._factories.append(factory)

    def remove(self, port: IListeningPort) -> None:
        """Let a port go; whoever has connected to it stays.

        Args:
            port: one that was added; does nothing for one that is gone already.
        """
        if port in self._ports:
            self._ports.remove(port)
            port.stopListening()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return sum(len(factory.connections) for factory in self._factories)

    def handlers(self) -> Iterator[str]:
        """The handler of each request that is being answered; empty where no answer is there yet."""
        return chain.from_iterable(factory.handlers() for factory in self._factories)

    async def close(self, delay_seconds: float, timeout_seconds: float) -> None:
        """Go away.

        Args:
            delay_seconds: how long everybody is still answered, for the last time on each connection.
            timeout_seconds: how long answers that are under way may then go on.
        """
        self.leaving = True
        for factory in self._factories:
            factory.announce_end()
        if self._ports and not self._in_haste:
            await self._wait(delay_seconds)
        await gatherResults([maybeDeferred(port.stopListening) for port in self._ports])
        seconds = 0 if self._in_haste else timeout_seconds
        await gatherResults([Deferred.fromCoroutine(factory.drain(seconds)) for factory in self._factories])

    def hasten(self) -> None:
        """Wait for nothing any more: neither for the delay nor for answers."""
        self._in_haste = True
        if self._pause is not None:
            self._pause.cancel()
        for factory in self._factories:
            if factory.draining:
                factory.cut()

    async def _wait(self, seconds: float) -> None:
        self._pause = Deferred(lambda pause: pause.callback(None))
        timer = self._clock.callLater(seconds, self._pause.callback, None)
        await self._pause
        self._pause = None
        if timer.active():
            timer.cancel()
