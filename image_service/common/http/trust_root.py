"""Trusted authorities of Twisted's clients, by the rules of `client_context`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from OpenSSL.crypto import X509StoreFlags
from twisted.internet._sslverify import IOpenSSLTrustRoot  # exported nowhere else
from zope.interface import implementer

if TYPE_CHECKING:
    from collections.abc import Callable

    from OpenSSL import SSL


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
