"""assisted-service as it is reached: its URL, and the endpoint that connects to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
from hyperlink import EncodedURL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import URI
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from image_service.core.errors import ConfigurationError
from image_service.server.assisted.handshake import Handshakes
from image_service.server.assisted.host_endpoint import HostEndpoint
from image_service.server.assisted.proxy import ProxyEndpoint, TunnelEndpoint
from image_service.server.assisted.tls import https_policy
from image_service.settings.parsers import Address
from image_service.settings.proxies import NO_PROXIES

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import IProtocol, IProtocolFactory
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.internet.protocol import Factory
    from twisted.web.iweb import IPolicyForHTTPS

    from image_service.common.http.origins import Proxy
    from image_service.settings.proxies import ProxySettings


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


@attrs.frozen
class Server:
    """assisted-service.

    Args:
        url: scheme, host and port, with the path before the API if a proxy adds one.
        proxy: through which it is reached; None: directly.
    """

    url: EncodedURL
    policy: IPolicyForHTTPS = attrs.field(repr=False)
    proxy: Proxy | None = None

    @classmethod
    def make(
        cls,
        base_url: str,
        ca_file: Path | None = None,
        *,
        insecure: bool = False,
        proxies: ProxySettings = NO_PROXIES,
    ) -> Server:
        """Make one of its settings.

        Args:
            base_url: as for ``url``.
            ca_file: PEM certificates to trust beside the system's.
            insecure: True to verify no certificate.
            proxies: one of them may be for the server.

        Raises:
            ConfigurationError: ``base_url`` is not an http or https URL with a host, or ``ca_file`` is
                unusable.
        """
        url = parse_base_url(base_url)
        return cls(url, https_policy(ca_file, insecure=insecure), proxies.find(base_url))

    @property
    def is_plain(self) -> bool:
        """True if it speaks HTTP without TLS."""
        return self.url.scheme == "http"

    def __str__(self) -> str:
        """Return scheme, host, port and proxy, for log lines."""
        through = "" if self.proxy is None else f" through the proxy {self.proxy}"
        return f"{self.url.scheme}://{self.url.authority()}{through}"


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
class ServerEndpoint:
    """The endpoint of the only server.

    An Agent makes an endpoint for each request, also for those that use a connection of the pool; this one
    only when it connects.
    """

    def __init__(self, reactor: PosixReactorBase, server: Server, timeout_seconds: float) -> None:
        uri = URI.fromBytes(server.url.to_text().encode("ascii"))
        host = uri.host.decode("ascii")
        self._handshakes = None if server.is_plain else Handshakes(reactor, server.policy, uri)
        self._tcp: IStreamClientEndpoint
        if server.proxy is None:
            self._tcp = HostEndpoint(reactor, host, uri.port, timeout_seconds)
        elif server.is_plain:  # requests in absolute form: see `ApiConnections`
            self._tcp = ProxyEndpoint(reactor, server.proxy, server.policy, timeout_seconds)
        else:
            authority = Address(host, uri.port).netloc
            self._tcp = TunnelEndpoint(reactor, server.proxy, server.policy, authority, timeout_seconds)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Return this endpoint."""
        del uri  # part of the interface
        return self

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect to the server; over TLS, the handshake is complete then."""
        cast("Factory", protocolFactory).noisy = False  # else it logs each connection twice
        if self._handshakes is None:
            connected: Deferred[IProtocol] = self._tcp.connect(protocolFactory)
            return connected
        return Deferred.fromCoroutine(self._handshakes.connect(self._tcp, protocolFactory))
