"""TLS of Twisted without verification: of assisted-service and of load tests, if operators ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from OpenSSL import SSL
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import CertificateOptions
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.protocols.tls import TLSMemoryBIOProtocol


@implementer(IPolicyForHTTPS, IOpenSSLClientConnectionCreator)
@attrs.frozen
class UnverifiedTls:
    """TLS connections that name their server but do not verify it."""

    _hostname: bytes = b""

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        """Return the same for a server."""
        del port  # part of the interface
        return UnverifiedTls(hostname)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Return a connection to the server."""
        del tlsProtocol  # part of the interface
        connection = SSL.Connection(CertificateOptions().getContext(), None)
        name = self._hostname.decode("ascii")
        if not (isIPAddress(name) or isIPv6Address(name)):  # RFC 6066 section 3: never an address
            connection.set_tlsext_host_name(self._hostname)
        return connection
