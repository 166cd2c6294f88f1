"""A proxy that opens tunnels."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from twisted.internet.defer import maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.address import IPv4Address
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IAddress, IProtocol, ITCPTransport
    from twisted.python.failure import Failure


class _Relay(Protocol):
    """One side of a tunnel."""

    def __init__(self, peer: _Relay | None = None) -> None:
        self.peer = peer

    def dataReceived(self, data: bytes) -> None:
        assert self.peer is not None
        self.peer.tcp.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        del reason
        if self.peer is not None:
            self.peer.tcp.loseConnection()

    @property
    def tcp(self) -> ITCPTransport:
        return cast("ITCPTransport", self.transport)


class _Client(_Relay):
    """The side of the client, which begins with CONNECT."""

    def __init__(self, proxy: TunnelProxy) -> None:
        super().__init__()
        self._proxy = proxy

    def dataReceived(self, data: bytes) -> None:
        if self.peer is not None:
            super().dataReceived(data)
            return
        self._proxy.heads.append(data)
        host, _, port = data.split(b" ")[1].decode().rpartition(":")
        there = Factory.forProtocol(lambda: _Relay(self))
        there.noisy = False
        connecting = TCP4ClientEndpoint(self._proxy.reactor, host, int(port)).connect(there)
        connecting.addCallback(self._answer)

    def _answer(self, peer: IProtocol) -> None:
        self.peer = cast("_Relay", peer)
        self.tcp.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n")


class TunnelProxy(Factory):
    """The proxy; ``heads`` are those of the requests."""

    noisy = False

    def __init__(self, reactor: EPollReactor) -> None:
        self.reactor = reactor
        self.heads: list[bytes] = []
        self.port = 0

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        del addr
        return _Client(self)


@asynccontextmanager
async def tunnel_proxy(reactor: EPollReactor) -> AsyncIterator[TunnelProxy]:
    """Listen on a free port of 127.0.0.1."""
    proxy = TunnelProxy(reactor)
    listening = reactor.listenTCP(0, proxy, interface="127.0.0.1")
    proxy.port = cast("IPv4Address", listening.getHost()).port
    try:
        yield proxy
    finally:
        await maybeDeferred(listening.stopListening)
