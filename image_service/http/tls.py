"""TLS below the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress


class TlsFactory(TLSMemoryBIOFactory):
    """Puts TLS below the connections that another factory makes.

    Twisted's own default gathers small writes for a turn of the reactor. That would hide a full buffer
    from the sender: answers would pile up in memory before a client that asks and does not read.
    """

    protocol = TLSMemoryBIOProtocol

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override]
        """Take a connection, or close it at once where the other factory does not want it."""
        connection = self.wrappedFactory.buildProtocol(addr)
        return None if connection is None else TLSMemoryBIOProtocol(self, connection)
