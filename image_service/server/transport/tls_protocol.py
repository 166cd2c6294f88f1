"""The TLS protocol below a connection."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol

from image_service.server.transport.exchanges.handshake_failures import find_failure
from image_service.server.transport.sending.tls_sender import TlsTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress
    from twisted.internet.tcp import Server
    from twisted.python.failure import Failure

    from image_service.server.transport.connection import Connection
    from image_service.server.transport.factory import ConnectionFactory
    from image_service.server.transport.sending.observer import HandshakeFailure
    from image_service.server.transport.tls.certificate import ServerCertificate

_HTTP_METHOD = re.compile(rb"[A-Z]+(?: |\Z)")  # no record of TLS begins with a letter


class TlsProtocol(TLSMemoryBIOProtocol):
    """Twisted's protocol over a `TlsTransport`."""

    factory: TlsFactory
    has_begun = False
    """True once the client has sent something that is not plain HTTP."""

    def makeConnection(self, transport: Server) -> None:
        """Start the handshake."""
        self._records = TlsTransport(transport)
        super().makeConnection(self._records)  # type: ignore[no-untyped-call]
        transport.protocol = _FirstBytes(transport, self)

    def dataReceived(self, data: bytes) -> None:
        """Process records. The connection receives each separately, but all share one turn."""
        self._records.sender.begin_turn()
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def lost_unused(self, reason: Failure, *, completed: bool) -> None:
        """Record the failed handshake, if that is why a connection was lost before its first request.

        Args:
            completed: True if the handshake was complete here; the client's alert may follow.
        """
        found = find_failure(reason.value, completed=completed)
        if found is not None and self.has_begun:
            self.record_failure(*found)

    def record_failure(self, failure: HandshakeFailure, cause: str = "") -> None:
        """Record a failed handshake."""
        self.factory.failures.record(self._records.getPeer().host, failure, cause)


class TlsFactory(TLSMemoryBIOFactory):
    """Puts TLS below the connections of another factory."""

    def __init__(self, certificate: ServerCertificate, factory: ConnectionFactory) -> None:
        super().__init__(certificate, isClient=False, wrappedFactory=factory)
        self.failures = factory.context.handshake_failures

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override]
        """Accept a connection, or close it if the other factory refuses it."""
        connection = self.wrappedFactory.buildProtocol(addr)
        return None if connection is None else TlsProtocol(self, connection)  # type: ignore[no-untyped-call]


class _FirstBytes(Protocol):
    """Receives the first bytes of a client, and passes the connection on: to TLS, or without it.

    Further bytes do not come here: a client sends a record for each of thousands of ranges.
    """

    def __init__(self, tcp: Server, tls: TlsProtocol) -> None:
        self._tcp = tcp
        self._tls = tls

    def dataReceived(self, data: bytes) -> None:
        """Pass the connection on."""
        tcp, tls = self._tcp, self._tls
        if _HTTP_METHOD.match(data):
            connection = cast("Connection", tls.wrappedProtocol)
            tls.factory.unregisterProtocol(tls)  # type: ignore[no-untyped-call]
            tcp.protocol = connection
            connection.refuse_plain_http(tcp, data)
        else:
            tls.has_begun = True
            tcp.protocol = tls
            tls.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The client has sent nothing."""
        self._tls.connectionLost(reason)  # type: ignore[no-untyped-call]
