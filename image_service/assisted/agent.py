"""The agent below treq: one server, uncoded content, no cookies.

treq requests gzip and decodes it without a limit, and keeps cookies in one jar for all callers. Here content
arrives uncoded, so the size limit holds before anything is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
from hyperlink import EncodedURL
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import Agent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory
from zope.interface import implementer

from image_service.assisted.body import abort_response
from image_service.assisted.failures import upstream_error
from image_service.errors import ConfigurationError

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IProtocol, IProtocolFactory
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.internet.protocol import Factory
    from twisted.web.client import URI, HTTPConnectionPool
    from twisted.web.iweb import IBodyProducer, IPolicyForHTTPS, IResponse


class _AsciiUrl(EncodedURL):
    """A URL that treq does not encode again: hyperlink would take IPv6 addresses for names."""

    def to_uri(self) -> EncodedURL:
        return self


def parse_base_url(base_url: str) -> EncodedURL:
    """Return an http or https URL with a host, without empty segments; raises ConfigurationError."""
    try:
        url = _AsciiUrl.from_text(base_url if base_url.isascii() else "")
    except ValueError:
        url = _AsciiUrl()
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment or url.userinfo:
        msg = "the URL of assisted-service must be http or https with a host, without user, query or fragment"
        raise ConfigurationError(msg)
    return url.replace(path=[segment for segment in url.path if segment])


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
@attrs.frozen
class ServerEndpoint:
    """The endpoint of the only server.

    An Agent makes an endpoint for each request, also for those that use a connection of the pool; this one
    only when it connects.
    """

    _reactor: PosixReactorBase
    _uri: URI
    _policy: IPolicyForHTTPS
    _timeout_seconds: float

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Return this endpoint."""
        del uri  # part of the interface
        return self

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect to the server."""
        cast("Factory", protocolFactory).noisy = False  # else it logs each connection twice
        host, port = self._uri.host, self._uri.port
        endpoint: IStreamClientEndpoint
        endpoint = HostnameEndpoint(self._reactor, host.decode("ascii"), port, self._timeout_seconds)
        if self._uri.scheme == b"https":
            endpoint = wrapClientTLS(self._policy.creatorForNetloc(host, port), endpoint)
        connected: Deferred[IProtocol] = endpoint.connect(protocolFactory)
        return connected


@implementer(IAgent)
class UncodedAgent:
    """Sends all requests to one server; refuses coded content, and ignores cookies."""

    def __init__(self, reactor: PosixReactorBase, server: ServerEndpoint, pool: HTTPConnectionPool) -> None:
        self._agent: IAgent = Agent.usingEndpointFactory(reactor, server, pool)

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """Send a request for uncoded content; fails with ``UpstreamError`` if the content is coded."""

        def check_coding(response: IResponse) -> IResponse | Deferred[IResponse]:
            response.headers.removeHeader(b"Set-Cookie")
            codings = b",".join(response.headers.getRawHeaders(b"Content-Encoding", []))
            if codings.strip().lower() in {b"", b"identity"}:
                return response
            return abort_response(
                response, upstream_error("the response has a content coding, not requested")
            )

        uncoded = headers.copy() if headers is not None else Headers()
        uncoded.setRawHeaders(b"Accept-Encoding", [b"identity"])
        response: Deferred[IResponse] = self._agent.request(method, uri, uncoded, bodyProducer)
        return response.addCallback(check_coding)
