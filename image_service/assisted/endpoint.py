"""The endpoint of assisted-service for Twisted's HTTP client.

An Agent makes an endpoint for every request, and for HTTPS a TLS context with all trusted certificates,
whether or not it then connects. Most requests use a connection of the pool, so here `connect` makes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from hyperlink import EncodedURL
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from image_service.errors import ConfigurationError

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IProtocol, IProtocolFactory
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.web.client import URI
    from twisted.web.iweb import IPolicyForHTTPS


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
@attrs.frozen
class UpstreamEndpoint:
    """The endpoint of all requests.

    Args:
        reactor: connects, and resolves the name.
        uri: scheme, host and port.
        policy: verifies the certificate.
        timeout_seconds: for a TCP connection.
    """

    _reactor: PosixReactorBase
    _uri: URI
    _policy: IPolicyForHTTPS
    _timeout_seconds: float

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Return this endpoint, for every URI."""
        del uri  # part of the interface
        return self

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect by an endpoint made now."""
        host, port, timeout_seconds = self._uri.host, self._uri.port, self._timeout_seconds
        endpoint: IStreamClientEndpoint
        endpoint = HostnameEndpoint(self._reactor, host.decode("ascii"), port, timeout_seconds)
        if self._uri.scheme == b"https":
            endpoint = wrapClientTLS(self._policy.creatorForNetloc(host, port), endpoint)
        connected: Deferred[IProtocol] = endpoint.connect(protocolFactory)
        return connected


class _AsciiUrl(EncodedURL):
    """A URL of ASCII alone. treq converts every URL, and thereby takes IPv6 addresses for names."""

    def to_uri(self) -> EncodedURL:
        return self


def parse_base_url(base_url: str) -> EncodedURL:
    """Return an http(s) URL of ASCII with a host; raises ConfigurationError."""
    try:
        url = _AsciiUrl.from_text(base_url if base_url.isascii() else "")  # of this class
    except ValueError:
        url = _AsciiUrl()
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment or url.userinfo:
        msg = "the URL of assisted-service must be http or https with a host, without user, query or fragment"
        raise ConfigurationError(msg)
    return url.replace(path=[segment for segment in url.path if segment])
