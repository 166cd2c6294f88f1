"""TLS of Twisted's clients by the rules of `client_context`: authorities, and the names of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from OpenSSL import SSL
from OpenSSL.crypto import X509StoreFlags
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet._sslverify import IOpenSSLTrustRoot  # exported nowhere else
from twisted.internet.abstract import isIPAddress, isIPv6Address
from zope.interface import implementer

if TYPE_CHECKING:
    from collections.abc import Callable


@implementer(IOpenSSLTrustRoot)
@attrs.frozen
class TrustRoot:
    """Authorities; an intermediate one may be among them without its root.

    Args:
        add: adds them to a context.
    """

    add: Callable[[SSL.Context], None]

    def _addCACertsToContext(self, context: SSL.Context) -> None:
        self.add(context)
        if store := context.get_cert_store():
            store.set_flags(X509StoreFlags.PARTIAL_CHAIN)


def check_names(connection: SSL.Connection, host: str) -> None:
    """Verify the host after a handshake: Twisted accepts a trusted certificate that names none.

    Args:
        connection: that of `UnverifiedTls` may have any certificate.
        host: the dot of the root at its end is not in certificates.

    Raises:
        service_identity.CertificateError: the certificate has no subjectAltName.
        service_identity.VerificationError: it is for other hosts.
    """
    if connection.get_verify_mode() == SSL.VERIFY_NONE:
        return
    host = host.removesuffix(".")
    is_address = isIPAddress(host) or isIPv6Address(host)
    (verify_ip_address if is_address else verify_hostname)(connection, host)
