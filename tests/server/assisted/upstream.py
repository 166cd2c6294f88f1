"""A server of scripted bytes, for responses that the stand-in cannot send."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import maybeDeferred
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.ssl import DefaultOpenSSLContextFactory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trustme import CA
    from twisted.internet.address import IPv4Address
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IAddress, IPushProducer, ITCPTransport
    from twisted.python.failure import Failure

IGNITION = b'{"ignition":{"version":"3.2.0"}}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n" + IGNITION


class _Scripted(Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._received = b""

    def connectionMade(self) -> None:
        self._upstream.connections.append(self)
        self._tcp.write(self._upstream.greeting)

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"\r\n\r\n"):
            self._upstream.requests.append(self._received)
            self._received = b""
            self._tcp.write(self._upstream.answer)
            if self._upstream.close:
                self._tcp.loseConnection()
            if self._upstream.stops_reading:
                cast("IPushProducer", self.transport).pauseProducing()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        del reason
        self._upstream.connections.remove(self)

    def abort(self) -> None:
        self._tcp.abortConnection()

    @property
    def _tcp(self) -> ITCPTransport:
        return cast("ITCPTransport", self.transport)


@attrs.define
class Upstream(Factory):
    """Its response to every request, whether it then closes or stops reading, and the requests so far."""

    answer: bytes = OK
    greeting: bytes = b""
    close: bool = False
    stops_reading: bool = False
    requests: list[bytes] = attrs.field(factory=list)
    connections: list[_Scripted] = attrs.field(factory=list)
    port: int = 0
    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        del addr
        return _Scripted(self)


@asynccontextmanager
async def upstream(
    reactor: EPollReactor, interface: str = "127.0.0.1", certificate: Path | None = None, port: int = 0
) -> AsyncIterator[Upstream]:
    """Listen on a port, by default a free one; over TLS with a certificate, whose key is in the same file."""
    factory = Upstream()
    if certificate is None:
        listening = reactor.listenTCP(port, factory, interface=interface)
    else:
        tls = DefaultOpenSSLContextFactory(str(certificate), str(certificate))
        listening = reactor.listenSSL(port, factory, tls, interface=interface)
    factory.port = cast("IPv4Address", listening.getHost()).port
    try:
        yield factory
    finally:
        await maybeDeferred(listening.stopListening)
        for connection in tuple(factory.connections):
            connection.abort()


def issue(authority: CA, directory: Path, *names: str) -> Path:
    """Write a certificate for names or addresses, with its key, to a file."""
    path = directory / f"{names[0].replace(':', '_')}.pem"
    authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(path)
    return path
