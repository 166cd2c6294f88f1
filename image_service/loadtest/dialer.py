"""Connections to the servers that are tested."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet import error
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol, wrapClientTLS

from image_service.loadtest.connection import Connection, Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twisted.internet.interfaces import IReactorCore, IReactorTCP, IReactorTime, IStreamClientEndpoint
    from twisted.web.iweb import IPolicyForHTTPS

    from image_service.loadtest.targets import Origin

    class Reactor(IReactorTCP, IReactorTime, IReactorCore):
        """What connections need."""


_LOOK_SECONDS = 3.0


def find_addresses(origin: Origin) -> list[str]:
    """Find where a server listens. Blocks.

    Args:
        origin: the server.

    Returns:
        IP literals: all that accept a connection; all that there are where none does.

    Raises:
        OSError: its name is not known.
        UnicodeError: it is no name.
    """
    found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return [each for each in addresses if _accepts(each, origin.port)] or addresses


def _accepts(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), _LOOK_SECONDS):
        return True
    return False


class Dialer:
    """Makes connections.

    Args:
        reactor: connects.
        addresses: of each server; clients are spread over them.
        policy: how certificates are verified.
        clock: seconds, for measuring.
        timeout_seconds: for one connection.
    """

    def __init__(
        self,
        reactor: Reactor,
        addresses: Mapping[Origin, Sequence[str]],
        policy: IPolicyForHTTPS,
        *,
        clock: Callable[[], float],
        timeout_seconds: float,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._endpoints = {
            origin: [self._endpoint(origin, each, policy) for each in found]
            for origin, found in addresses.items()
        }

    async def connect(
        self,
        origin: Origin,
        number: int,
        took: Callable[[int], None] = lambda _: None,
        bytes_per_second: float | None = None,
    ) -> Connection:
        """Connect to a server.

        Args:
            origin: the server.
            number: of the client.
            took: told how many bytes of content came, as they come.
            bytes_per_second: how fast answers are read; None: as they come.

        Returns:
            a connection that takes requests.

        Raises:
            Failed: there is none.
        """
        endpoints = self._endpoints[origin]
        secure = origin.scheme == "https"
        connection = Connection(self._reactor, self._clock, took, bytes_per_second, secure=secure)
        try:
            await connectProtocol(endpoints[number % len(endpoints)], connection)
        except error.ConnectionRefusedError:
            raise Failed("refused") from None
        except (error.TimeoutError, error.TCPTimedOutError):
            raise Failed("connect-timeout") from None
        except error.ConnectError:
            raise Failed("unreachable") from None
        connection.ready.addTimeout(self._timeout_seconds, self._reactor)
        try:
            return await connection.ready
        except TimeoutError:
            raise Failed("connect-timeout") from None

    def _endpoint(self, origin: Origin, address: str, policy: IPolicyForHTTPS) -> IStreamClientEndpoint:
        make = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        plain = make(self._reactor, address, origin.port, timeout=self._timeout_seconds)
        if origin.scheme == "http":
            return plain
        # Once for all connections: to load what is trusted takes longer than a handshake.
        return wrapClientTLS(policy.creatorForNetloc(origin.host.encode("ascii"), origin.port), plain)
