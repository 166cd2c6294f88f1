"""Trust in the certificate of assisted-service: the system's certificate authorities, and those of a file.

Twisted trusts either the platform's authorities or a list of certificates, not both. So the system's are read
here, once, from where OpenSSL looks for them; the file is read again when it changes. A connection then costs
one check of the file, where the platform's trust would read all files.
"""

from __future__ import annotations

import re
import ssl
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from OpenSSL import crypto
from twisted.internet.ssl import Certificate
from twisted.web.client import BrowserLikePolicyForHTTPS
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from image_service.common.files.reloaded import Reloaded
from image_service.common.http.tls import system_state
from image_service.common.http.trust_root import TrustRoot
from image_service.common.http.unverified_tls import UnverifiedTls
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from OpenSSL import SSL
    from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

_PEM = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HASH_LINK = "[0-9a-f]" * 8 + ".[0-9]*"  # the links that c_rehash makes and OpenSSL looks up


def https_policy(ca_file: Path | None = None, *, insecure: bool = False) -> IPolicyForHTTPS:
    """Return the policy by which an ``Agent`` verifies a server's certificate and the host that it is for.

    Args:
        ca_file: PEM certificates to trust beside the system's.
        insecure: True to verify nothing, and not to read ``ca_file``.

    Raises:
        ConfigurationError: ``ca_file`` cannot be read, or contains no certificate.
    """
    if insecure:
        return UnverifiedTls()
    system = _system_certificates(system_state())
    if ca_file is None:
        return _trust(system)
    return _ReloadedPolicy(Reloaded([ca_file], lambda: _trust(system + _certificates_of(ca_file))))


def _trust(authorities: Iterable[Certificate]) -> IPolicyForHTTPS:
    def add(context: SSL.Context) -> None:
        if store := context.get_cert_store():
            for certificate in authorities:
                store.add_cert(certificate.original)

    return _CachedContexts(BrowserLikePolicyForHTTPS(TrustRoot(add)))


def _certificates_of(file: Path) -> list[Certificate]:
    try:
        certificates = list(map(Certificate.loadPEM, _PEM.findall(file.read_bytes())))
    except OSError as error:
        raise ConfigurationError(f"the CA file {file} cannot be read: {error.strerror}") from None
    except (crypto.Error, ValueError):
        raise ConfigurationError(f"the CA file {file} contains a damaged certificate") from None
    if not certificates:
        raise ConfigurationError(f"the CA file {file} contains no PEM certificate")
    return certificates


@lru_cache(maxsize=1)
def _system_certificates(_state: tuple[object, ...]) -> list[Certificate]:
    """Return the authorities that OpenSSL trusts by default, or of ``SSL_CERT_FILE``, ``SSL_CERT_DIR``."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []  # both None where nothing is installed
    if paths.capath:
        files += Path(paths.capath).glob(_HASH_LINK)
    distinct: dict[bytes, None] = {}  # the same authority is often both in a bundle and behind a hash link
    for file in files:
        with suppress(OSError):
            distinct |= dict.fromkeys(_PEM.findall(file.read_bytes()))
    found = []
    for text in distinct:
        with suppress(crypto.Error, ValueError):  # like OpenSSL: skip unusable certificates
            found.append(Certificate.loadPEM(text))
    return found


@implementer(IPolicyForHTTPS)
@attrs.frozen
class _CachedContexts:
    """Makes the TLS context of a server once: it holds all authorities, and takes a millisecond."""

    _policy: IPolicyForHTTPS
    _creators: dict[bytes, IOpenSSLClientConnectionCreator] = attrs.field(init=False, factory=dict)

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        if hostname not in self._creators:
            self._creators[hostname] = self._policy.creatorForNetloc(hostname, port)
        return self._creators[hostname]


@implementer(IPolicyForHTTPS)
@attrs.frozen
class _ReloadedPolicy:
    """Trusts the authorities that the file contains when a connection is made."""

    _policy: Reloaded[IPolicyForHTTPS]

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        return self._policy.get().creatorForNetloc(hostname, port)
