"""TLS below the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import IAddress

_HTTP_1_1 = b"http/1.1"


@implementer(IOpenSSLServerConnectionCreator)
class ServerCertificate:
    """What the listener shows; TLS 1.2 stays allowed, because firmware may be old.

    Args:
        key_file: PEM, without passphrase.
        certificate_file: PEM, the server's certificate first, then those between it and its root.

    Raises:
        OpenSSL.SSL.Error: they are not a pair.
    """

    def __init__(self, key_file: Path, certificate_file: Path) -> None:
        self._context = SSL.Context(SSL.TLS_SERVER_METHOD)
        self._context.set_min_proto_version(SSL.TLS1_2_VERSION)
        self._context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        self._context.use_certificate_chain_file(str(certificate_file))
        self._context.use_privatekey_file(str(key_file))
        self._context.check_privatekey()
        self._context.set_alpn_select_callback(_choose_protocol)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:  # noqa: ARG002
        """Make the TLS side of a connection."""
        return SSL.Connection(self._context, None)


def _choose_protocol(
    _connection: SSL.Connection, offered: list[bytes]
) -> bytes | SSL._NoOverlappingProtocols:
    return _HTTP_1_1 if _HTTP_1_1 in offered else SSL.NO_OVERLAPPING_PROTOCOLS


class TlsFactory(TLSMemoryBIOFactory):
    """Puts TLS below the connections that another factory makes.

    Twisted's own default gathers small writes for a turn of the reactor. That would hide a full buffer
    from the sender: answers would pile up in memory before a client that asks and does not read.
    """

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override]
        """Take a connection, or close it at once where the other factory does not want it."""
        connection = self.wrappedFactory.buildProtocol(addr)
        return None if connection is None else TLSMemoryBIOProtocol(self, connection)
