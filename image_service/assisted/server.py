"""Where assisted-service is, for Twisted's HTTP client.

An Agent makes an endpoint for every request, and for HTTPS a context with every certificate that is trusted,
whether or not it then connects. Most requests find a connection in the pool, so here they are made by who
connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IProtocol, IProtocolFactory
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.web.client import URI
    from twisted.web.iweb import IPolicyForHTTPS


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
@attrs.frozen
class Server:
    """A server, which all requests go to.

    Args:
        reactor: connects, and looks the name up.
        uri: names host and port; it is http or https.
        policy: how its certificate is verified, if it has one.
        timeout_seconds: for a TCP connection.
    """

    _reactor: PosixReactorBase
    _uri: URI
    _policy: IPolicyForHTTPS
    _timeout_seconds: float

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Tell where to connect; it is the same place for all."""
        del uri  # part of the interface
        return self

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect, as an endpoint does."""
        host, port, timeout_seconds = self._uri.host, self._uri.port, self._timeout_seconds
        endpoint: IStreamClientEndpoint
        endpoint = HostnameEndpoint(self._reactor, host.decode("ascii"), port, timeout_seconds)
        if self._uri.scheme == b"https":
            endpoint = wrapClientTLS(self._policy.creatorForNetloc(host, port), endpoint)
        connected: Deferred[IProtocol] = endpoint.connect(protocolFactory)
        return connected
