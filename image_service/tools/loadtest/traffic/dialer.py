"""Opens connections to the tested servers."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from service_identity import CertificateError
from twisted.internet import defer, error
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol, wrapClientTLS

from image_service.common.http.trust_root import check_names
from image_service.tools.loadtest.traffic.connection import ClientConnection, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twisted.internet.interfaces import IReactorCore, IReactorTCP, IReactorTime, IStreamClientEndpoint
    from twisted.web.iweb import IPolicyForHTTPS

    from image_service.tools.loadtest.traffic.plan import ServerOrigin

    class ClientReactor(IReactorTCP, IReactorTime, IReactorCore):
        """The interfaces of the reactor that clients need."""


_PROBE_SECONDS = 3.0


def find_addresses(origin: ServerOrigin) -> list[str]:
    """Return the IP literals of a server that accept a connection; all of them if none does. Blocks.

    Raises:
        OSError: the name cannot be resolved.
        UnicodeError: the host is not a valid name.
    """
    found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return [each for each in addresses if _accepts(each, origin.port)] or addresses


def _accepts(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), _PROBE_SECONDS):
        return True
    return False


class Dialer:
    """Opens connections.

    Args:
        addresses: of each server; clients are spread over them.
        clock: seconds, for measuring.
        timeout_seconds: for connecting, and again for the TLS handshake.
        source: returns the IPv4 address from which a client connects by plain HTTP; None: any.
    """

    def __init__(  # noqa: PLR0913 - one has a default
        self,
        reactor: ClientReactor,
        addresses: Mapping[ServerOrigin, Sequence[str]],
        policy: IPolicyForHTTPS,
        *,
        clock: Callable[[], float],
        timeout_seconds: float,
        source: Callable[[int], str] | None = None,
    ) -> None:
        self._addresses = addresses
        self._source = source
        self._reactor = reactor
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._endpoints = {
            origin: [self._endpoint(origin, each, policy) for each in found]
            for origin, found in addresses.items()
        }

    async def connect(
        self,
        origin: ServerOrigin,
        number: int,
        count_content: Callable[[int], None] = lambda _: None,
        bytes_per_second: float | None = None,
    ) -> ClientConnection:
        """Return a connection on which requests can be sent.

        Args:
            number: of the client; selects the address.
            count_content: called with the number of bytes of content that arrived.
            bytes_per_second: how fast responses are read; None: as fast as they arrive.

        Raises:
            RequestFailed: the connection or the handshake failed.
        """
        endpoint = self._find_endpoint(origin, number)
        secure = origin.scheme == "https"
        connection = ClientConnection(
            self._reactor, self._clock, count_content, bytes_per_second, secure=secure
        )
        try:
            await connectProtocol(endpoint, connection)
        except error.ConnectionRefusedError:
            raise RequestFailed("refused") from None
        except (error.TimeoutError, error.TCPTimedOutError):
            raise RequestFailed("connect-timeout") from None
        except error.ConnectError:
            raise RequestFailed("unreachable") from None
        connection.ready.addTimeout(self._timeout_seconds, self._reactor)
        try:
            await connection.ready
        except defer.TimeoutError:
            raise RequestFailed("connect-timeout") from None
        if secure:
            try:
                check_names(connection.transport.getHandle(), origin.host)
            except CertificateError:
                connection.close()
                raise RequestFailed("tls-no-name") from None
        return connection

    def _find_endpoint(self, origin: ServerOrigin, number: int) -> IStreamClientEndpoint:
        endpoints = self._endpoints[origin]
        if self._source is None:
            return endpoints[number % len(endpoints)]
        addresses, source = self._addresses[origin], (self._source(number), 0)
        address = addresses[number % len(addresses)]
        return TCP4ClientEndpoint(self._reactor, address, origin.port, self._timeout_seconds, source)

    def _endpoint(self, origin: ServerOrigin, address: str, policy: IPolicyForHTTPS) -> IStreamClientEndpoint:
        endpoint_class = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        plain = endpoint_class(self._reactor, address, origin.port, timeout=self._timeout_seconds)
        if origin.scheme == "http":
            return plain
        name = origin.host.removesuffix(".")  # of the root, which is not in certificates
        # Once for all connections: loading the trusted certificates takes longer than a handshake.
        return wrapClientTLS(policy.creatorForNetloc(name.encode("ascii"), origin.port), plain)
