"""TLS below the connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from image_service.errors import ConfigurationError
from image_service.files.reloaded import Reloaded
from image_service.transport.tls_sender import TlsTransport

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import IAddress, IProtocolFactory, IReactorTime
    from twisted.internet.tcp import Server

    from image_service.settings.network import TlsSettings

_HTTP_1_1 = b"http/1.1"
_MODE_ENABLE_PARTIAL_WRITE = 1  # openssl/ssl.h; pyOpenSSL sets it and has no name for it


@implementer(IOpenSSLServerConnectionCreator)
class ServerCertificate:
    """What the listener shows: to new connections what the files hold now, to the others what they have seen.

    Args:
        key_file: PEM, without passphrase.
        certificate_file: PEM, the server's certificate first, then those between it and its root.
        clock: says when to look after the files.

    Raises:
        ConfigurationError: they are not a pair.
    """

    def __init__(self, key_file: Path, certificate_file: Path, clock: IReactorTime) -> None:
        make = partial(_make_context, key_file, certificate_file)
        self._context = Reloaded((key_file, certificate_file), make, clock.seconds)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:  # noqa: ARG002
        """Make the TLS side of a connection."""
        return SSL.Connection(self._context.get(), None)


def _make_context(key_file: Path, certificate_file: Path) -> SSL.Context:
    """TLS 1.2 stays allowed, because firmware may be old."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.clear_mode(_MODE_ENABLE_PARTIAL_WRITE)  # it would end each write after one record
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # else each connection keeps them
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # clients keep their sessions, as tickets
    context.set_alpn_select_callback(_choose_protocol)
    try:
        context.use_certificate_chain_file(str(certificate_file))
        # Not by its name: OpenSSL would ask the terminal for a passphrase, and everything would wait for it.
        key = load_pem_private_key(key_file.read_bytes(), None)
        context.use_privatekey(key)  # type: ignore[arg-type] # what is for no certificate is a TypeError
        context.check_privatekey()
    except (SSL.Error, OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        msg = f"{certificate_file} and {key_file} are no pair: {_reason(error)}"
        raise ConfigurationError(msg) from None
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, SSL.Error):
        return "; ".join(reason for *_, reason in error.args[0])
    return str(error)


def _choose_protocol(
    _connection: SSL.Connection, offered: list[bytes]
) -> bytes | SSL._NoOverlappingProtocols:
    return _HTTP_1_1 if _HTTP_1_1 in offered else SSL.NO_OVERLAPPING_PROTOCOLS


class _Protocol(TLSMemoryBIOProtocol):
    """Twisted's, with an outlet of ours below it."""

    def makeConnection(self, transport: Server) -> None:
        """Begin the handshake."""
        self._outlet = TlsTransport(transport)
        super().makeConnection(self._outlet)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Take records, each of which the connection gets by itself: together they have one turn."""
        self._outlet.sender.begin_turn()
        super().dataReceived(data)  # type: ignore[no-untyped-call]


class TlsFactory(TLSMemoryBIOFactory):
    """Puts TLS below the connections that another factory makes."""

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override]
        """Take a connection, or close it at once where the other factory does not want it."""
        connection = self.wrappedFactory.buildProtocol(addr)
        return None if connection is None else _Protocol(self, connection)  # type: ignore[no-untyped-call]


def with_tls(factory: IProtocolFactory, settings: TlsSettings, clock: IReactorTime) -> IProtocolFactory:
    """Return a factory that puts TLS below the connections of `factory`; without a certificate, `factory`.

    Raises:
        ConfigurationError: key and certificate are not a pair.
    """
    if settings.key_file is None or settings.certificate_file is None:
        return factory
    certificate = ServerCertificate(settings.key_file, settings.certificate_file, clock)
    return TlsFactory(certificate, isClient=False, wrappedFactory=factory)
