"""Connections to a host by its name or address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import DNSLookupError

from image_service.core.formats.hosts import ascii_host

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol, IProtocolFactory


class HostEndpoint(HostnameEndpoint):
    """An endpoint for every host that `ascii_host` accepts; connecting to others is a DNSLookupError.

    Twisted has the rules of IDNA 2008 for all names. It refuses ``assisted_service``, which a container may
    have.
    """

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect."""
        return fail(DNSLookupError()) if self._badHostname else super().connect(protocolFactory)

    @staticmethod
    def _hostAsBytesAndText(host: bytes | str) -> tuple[bool, bytes, str]:
        try:
            text = ascii_host(host if isinstance(host, str) else host.decode("ascii"))
        except ValueError:
            return True, b"", ""
        return False, text.encode("ascii"), text
