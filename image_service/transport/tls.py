"""TLS below a connection: the certificate, the context, the protocol."""

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

# For TLS 1.2; all suites of TLS 1.3 have forward secrecy and authenticate (AEAD).
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_LEGACY_CIPHERS = f"{_CIPHERS}:ECDHE+AES:RSA+AES:!AESCCM"
_HTTP_1_1 = b"http/1.1"
_MODE_ENABLE_PARTIAL_WRITE = 1  # openssl/ssl.h; pyOpenSSL sets it and has no name for it


@implementer(IOpenSSLServerConnectionCreator)
class ServerCertificate:
    """The listener's certificate: new connections use the current files, existing ones keep their own.

    Args:
        key_file: PEM, without passphrase.
        certificate_file: PEM, the server's certificate first, then the intermediate ones.
        clock: for how often the files are checked.
        legacy_ciphers: True: TLS 1.2 also allows AES in CBC mode, and RSA key exchange.

    Raises:
        ConfigurationError: key and certificate are not a pair.
    """

    def __init__(
        self, key_file: Path, certificate_file: Path, clock: IReactorTime, *, legacy_ciphers: bool = False
    ) -> None:
        ciphers = _LEGACY_CIPHERS if legacy_ciphers else _CIPHERS
        make = partial(_make_context, key_file, certificate_file, ciphers)
        self._context = Reloaded((key_file, certificate_file), make, clock.seconds)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:  # noqa: ARG002
        """Make the TLS side of a connection."""
        return SSL.Connection(self._context.get(), None)


def _make_context(key_file: Path, certificate_file: Path, ciphers: str) -> SSL.Context:
    """TLS 1.2 stays allowed, because firmware may be old."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(ciphers.encode())
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.clear_mode(_MODE_ENABLE_PARTIAL_WRITE)  # it would end each write after one record
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # else each connection keeps them
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # clients keep their sessions, as tickets
    context.set_alpn_select_callback(_choose_protocol)
    try:
        context.use_certificate_chain_file(str(certificate_file))
        # Not by its name: OpenSSL would block on the terminal for a passphrase.
        key = load_pem_private_key(key_file.read_bytes(), None)
        context.use_privatekey(key)  # type: ignore[arg-type] # a key unusable for certificates is a TypeError
        context.check_privatekey()
    except (SSL.Error, OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = "; ".join(text for *_, text in error.args[0]) if isinstance(error, SSL.Error) else str(error)
        msg = f"{certificate_file} and {key_file} are not a pair: {reason}"
        raise ConfigurationError(msg) from None
    return context


def _choose_protocol(
    _connection: SSL.Connection, offered: list[bytes]
) -> bytes | SSL._NoOverlappingProtocols:
    return _HTTP_1_1 if _HTTP_1_1 in offered else SSL.NO_OVERLAPPING_PROTOCOLS


class TlsProtocol(TLSMemoryBIOProtocol):
    """Twisted's protocol over a `TlsTransport`."""

    def makeConnection(self, transport: Server) -> None:
        """Start the handshake."""
        self._records = TlsTransport(transport)
        super().makeConnection(self._records)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Process records. The connection receives each separately, but all share one turn."""
        self._records.sender.begin_turn()
        super().dataReceived(data)  # type: ignore[no-untyped-call]


class TlsFactory(TLSMemoryBIOFactory):
    """Puts TLS below the connections of another factory."""

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override]
        """Accept a connection, or close it if the other factory refuses it."""
        connection = self.wrappedFactory.buildProtocol(addr)
        return None if connection is None else TlsProtocol(self, connection)  # type: ignore[no-untyped-call]


def with_tls(factory: IProtocolFactory, settings: TlsSettings, clock: IReactorTime) -> IProtocolFactory:
    """Return a factory that puts TLS below the connections of `factory`; without a certificate, `factory`.

    Raises:
        ConfigurationError: key and certificate are not a pair.
    """
    if settings.key_file is None or settings.certificate_file is None:
        return factory
    certificate = ServerCertificate(
        settings.key_file, settings.certificate_file, clock, legacy_ciphers=settings.legacy_ciphers
    )
    return TlsFactory(certificate, isClient=False, wrappedFactory=factory)
