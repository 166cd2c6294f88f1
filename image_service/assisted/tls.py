"""Whom to trust: the system's certificate authorities, and those of a file beside them.

Twisted offers either the platform's trust or a list of certificates, not a sum of the two. The sum is
made here of public parts: the system's certificates are read, once, from where OpenSSL would look; the
file again when it has changed. A connection then costs one look at it, the platform's trust all files.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import attrs
from OpenSSL import SSL, crypto
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import Certificate, CertificateOptions, trustRootFromCertificates
from twisted.web.client import BrowserLikePolicyForHTTPS
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from image_service.errors import ConfigurationError
from image_service.files.reloaded import Reloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from twisted.protocols.tls import TLSMemoryBIOProtocol

_PEM = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HASH_LINK = "[0-9a-f]" * 8 + ".[0-9]*"  # what c_rehash makes and OpenSSL looks up


def https_policy(
    ca_file: Path | None = None, *, insecure: bool = False, seconds: Callable[[], float] = monotonic
) -> IPolicyForHTTPS:
    """Decide how the certificate of a server is verified.

    Args:
        ca_file: PEM certificates that are trusted beside the system's.
        insecure: verify nothing; ``ca_file`` is not read then.
        seconds: the clock that says when to look whether ``ca_file`` has changed.

    Returns:
        the policy for a ``twisted.web.client.Agent``; unless insecure, the name or the address in the
        URL must be one that the certificate holds.

    Raises:
        ConfigurationError: ``ca_file`` cannot be read, or holds no certificate.
    """
    if insecure:
        return _UnverifiedPolicy()
    system = list(_system_certificates())
    if ca_file is None:
        return _trusting(system)
    return _RenewedPolicy(Reloaded([ca_file], lambda: _trusting(system + _certificates_of(ca_file)), seconds))


def _trusting(authorities: Iterable[Certificate]) -> IPolicyForHTTPS:
    # The same authority often stands in a bundle and behind a hash link.
    distinct = {certificate.dumpPEM(): certificate for certificate in authorities}
    return BrowserLikePolicyForHTTPS(trustRootFromCertificates(distinct.values()))


def _certificates_of(ca_file: Path) -> list[Certificate]:
    try:
        found = [_load(pem) for pem in _PEM.findall(ca_file.read_bytes())]
    except (OSError, crypto.Error, ValueError) as error:
        msg = f"the CA file {ca_file} cannot be read: {type(error).__name__}"
        raise ConfigurationError(msg) from error
    if not found:
        msg = f"the CA file {ca_file} holds no PEM certificate"
        raise ConfigurationError(msg)
    return found


def _system_certificates() -> Iterator[Certificate]:
    """What OpenSSL trusts by default, or what ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name instead."""
    for file in _system_files():
        try:
            yield from (_load(pem) for pem in _PEM.findall(file.read_bytes()))
        except (OSError, crypto.Error, ValueError):
            continue  # as OpenSSL does: one bad file of the system's must not stop the service


def _system_files() -> Iterator[Path]:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None:
        yield Path(paths.cafile)
    if paths.capath is not None:
        yield from Path(paths.capath).glob(_HASH_LINK)


def _load(pem: bytes) -> Certificate:
    return Certificate.loadPEM(pem)


@implementer(IPolicyForHTTPS)
@attrs.frozen
class _RenewedPolicy:
    """Trust whom the file names when a connection is made."""

    _policy: Reloaded[IPolicyForHTTPS]

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        return self._policy.get().creatorForNetloc(hostname, port)


@implementer(IPolicyForHTTPS)
class _UnverifiedPolicy:
    """Talk TLS to whoever answers (``INSECURE_SKIP_VERIFY``)."""

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        del port  # part of the interface
        return _UnverifiedConnections(hostname)


@implementer(IOpenSSLClientConnectionCreator)
@attrs.frozen
class _UnverifiedConnections:
    """TLS connections that name their server but do not check it."""

    _hostname: bytes

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        del tlsProtocol  # only a verification would have to tell it something
        connection = SSL.Connection(CertificateOptions().getContext(), None)
        name = self._hostname.decode("ascii")
        if not (isIPAddress(name) or isIPv6Address(name)):  # RFC 6066 section 3: never an address
            connection.set_tlsext_host_name(self._hostname)
        return connection
