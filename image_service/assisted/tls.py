"""Trust in TLS: the system's certificate authorities, and those of a file in addition.

Twisted offers either the platform's trust or a list of certificates, but not both together. Here the system's
certificates are read once, from OpenSSL's default locations, and the file again when it has changed. A new
connection then only checks the file for a change; the platform's trust would read all files.
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
_HASH_LINK = "[0-9a-f]" * 8 + ".[0-9]*"  # as c_rehash makes and OpenSSL looks up


def https_policy(
    ca_file: Path | None = None, *, insecure: bool = False, seconds: Callable[[], float] = monotonic
) -> IPolicyForHTTPS:
    """Return the policy that verifies certificates and the name or address in the URL.

    Args:
        ca_file: PEM certificates to trust in addition to the system's; re-read when it changes.
        insecure: do not verify; ``ca_file`` is not read.
        seconds: clock of the checks for a change.

    Raises:
        ConfigurationError: ``ca_file`` cannot be read, or has no certificate.
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
    """Yield what OpenSSL trusts by default: ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``, or its own locations."""
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
    """Trusts the certificates that the file has when a connection is made."""

    _policy: Reloaded[IPolicyForHTTPS]

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        return self._policy.get().creatorForNetloc(hostname, port)


@implementer(IPolicyForHTTPS)
class _UnverifiedPolicy:
    """Accepts any certificate (``INSECURE_SKIP_VERIFY``)."""

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        del port  # part of the interface
        return _UnverifiedConnections(hostname)


@implementer(IOpenSSLClientConnectionCreator)
@attrs.frozen
class _UnverifiedConnections:
    """TLS connections that name their server but do not verify it."""

    _hostname: bytes

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        del tlsProtocol  # part of the interface
        connection = SSL.Connection(CertificateOptions().getContext(), None)
        name = self._hostname.decode("ascii")
        if not (isIPAddress(name) or isIPv6Address(name)):  # RFC 6066 section 3: never an address
            connection.set_tlsext_host_name(self._hostname)
        return connection
