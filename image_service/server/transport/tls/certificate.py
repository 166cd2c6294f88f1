"""The certificate of a listener, with the TLS context that its connections get; warnings before it ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import attrs
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.logger import Logger
from zope.interface import implementer

from image_service.common.files.certificates import describe_end, read_not_after, read_private_key
from image_service.common.files.reloaded import Reloaded
from image_service.common.http.tls_policy import TlsPolicy
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime
    from twisted.protocols.tls import TLSMemoryBIOProtocol

    from image_service.settings.network import TlsSettings

# For TLS 1.2; all suites of TLS 1.3 have forward secrecy and authenticate (AEAD).
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_LEGACY_CIPHERS = f"{_CIPHERS}:ECDHE+AES:RSA+AES:!AESCCM"
_HTTP_1_1 = b"http/1.1"
_MODE_ENABLE_PARTIAL_WRITE = 1  # openssl/ssl.h; pyOpenSSL sets it and has no name for it
CHECK_SECONDS = 60
_WARNING_PERIOD = timedelta(days=1)


@attrs.frozen(eq=False)
class LoadedCertificate:
    """A certificate as it was read from its files."""

    context: SSL.Context
    not_after: datetime


@implementer(IOpenSSLServerConnectionCreator)
class ServerCertificate:
    """The listener's certificate: new connections use the current files, existing ones keep their own.

    Args:
        key_file: PEM, without passphrase.
        certificate_file: PEM, the server's certificate first, then the intermediate ones.
        clock: for how often the files are checked.
        legacy_ciphers: True: TLS 1.2 also allows AES in CBC mode, and RSA key exchange.

    Raises:
        ConfigurationError: a file cannot be used, or key and certificate are not a pair.
    """

    def __init__(
        self,
        key_file: Path,
        certificate_file: Path,
        clock: IReactorTime,
        *,
        legacy_ciphers: bool = False,
        policy: TlsPolicy | None = None,
    ) -> None:
        self.file = certificate_file
        ciphers = _LEGACY_CIPHERS if legacy_ciphers else _CIPHERS
        make = partial(_load, key_file, certificate_file, ciphers, policy or TlsPolicy())
        self._loaded = Reloaded((key_file, certificate_file), make, clock.seconds)

    @classmethod
    def from_settings(cls, settings: TlsSettings, clock: IReactorTime) -> ServerCertificate | None:
        """Return the certificate of the settings; None: images are served in plain HTTP.

        Raises:
            ConfigurationError: a file cannot be used, or key and certificate are not a pair.
        """
        if settings.key_file is None or settings.certificate_file is None:
            return None
        return cls(
            settings.key_file,
            settings.certificate_file,
            clock,
            legacy_ciphers=settings.legacy_ciphers,
            policy=settings.policy,
        )

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:  # noqa: ARG002
        """Make the TLS side of a connection."""
        return SSL.Connection(self.get().context, None)

    def get(self) -> LoadedCertificate:
        """Return the certificate that new connections use."""
        return self._loaded.get()


class ExpiryWarnings:
    """Logs a warning while a certificate has expired or ends soon; the start has warned of the first one.

    Args:
        now: returns the time, with a time zone.
    """

    _log = Logger()

    def __init__(
        self, certificate: ServerCertificate, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._certificate = certificate
        self._now = now
        self._checked = certificate.get()
        self._checked_at = now()

    def check(self) -> None:
        """Warn, if a new certificate is in use or a day has passed; call it every `CHECK_SECONDS`."""
        loaded, now = self._certificate.get(), self._now()
        if loaded is self._checked and now - self._checked_at < _WARNING_PERIOD:
            return
        self._checked, self._checked_at = loaded, now
        warning = describe_end(self._certificate.file, loaded.not_after, now)
        if warning is not None:
            self._log.warn("{warning}", warning=warning)


def _load(key_file: Path, certificate_file: Path, ciphers: str, policy: TlsPolicy) -> LoadedCertificate:
    """TLS 1.2 stays allowed unless the policy forbids it, because firmware may be old."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION if policy.allows_1_2 else SSL.TLS1_3_VERSION)
    context.set_cipher_list(ciphers.encode())
    if policy.ciphers_1_2:
        context.set_cipher_list(":".join(policy.ciphers_1_2).encode())
    elif policy.suites:
        context.set_min_proto_version(SSL.TLS1_3_VERSION)
    if policy.suites_1_3:
        context.set_tls13_ciphersuites(":".join(policy.suites_1_3).encode())
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.clear_mode(_MODE_ENABLE_PARTIAL_WRITE)  # it would end each write after one record
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # else each connection keeps them
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # clients keep their sessions, as tickets
    context.set_alpn_select_callback(_choose_protocol)
    key = read_private_key(key_file, certificate_file)
    try:
        context.use_certificate_chain_file(str(certificate_file))
        context.use_privatekey(key)  # type: ignore[arg-type] # a key unusable for certificates is a TypeError
        context.check_privatekey()
    except (SSL.Error, TypeError) as error:
        reason = describe_tls_error(error) if isinstance(error, SSL.Error) else str(error)
        msg = f"{certificate_file} and {key_file} cannot be used for TLS: {reason}"
        raise ConfigurationError(msg) from None
    return LoadedCertificate(context, read_not_after(certificate_file))


def describe_tls_error(error: SSL.Error) -> str:
    """Return OpenSSL's reasons."""
    return "; ".join(reason for _library, _function, reason in error.args[0]) if error.args else "no reason"


def _choose_protocol(
    _connection: SSL.Connection, offered: list[bytes]
) -> bytes | SSL._NoOverlappingProtocols:
    return _HTTP_1_1 if _HTTP_1_1 in offered else SSL.NO_OVERLAPPING_PROTOCOLS
