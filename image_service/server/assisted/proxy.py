"""Connections to assisted-service through an HTTP proxy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn, cast

from twisted.internet import error as network
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.web.client import URI
from zope.interface import implementer

from image_service.server.assisted.failures import ConnectFailed
from image_service.server.assisted.handshake import Handshakes
from image_service.server.assisted.host_endpoint import HostEndpoint

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol, IProtocolFactory, ITCPTransport
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.python.failure import Failure
    from twisted.web.iweb import IPolicyForHTTPS

    from image_service.common.http.origins import Proxy

_MAX_HEAD_BYTES = 16 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
_CHECK_PROXY = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
_CHECK_PROXY_TLS = f"{_CHECK_PROXY}, and its authority in ASSISTED_SERVICE_API_TRUSTED_CA_FILE"


@implementer(IStreamClientEndpoint)
class ProxyEndpoint:
    """Connects to a proxy; its errors name it.

    Args:
        policy: verifies the certificate of a proxy that is reached by TLS.
    """

    def __init__(
        self, reactor: PosixReactorBase, proxy: Proxy, policy: IPolicyForHTTPS, timeout_seconds: float
    ) -> None:
        self._endpoint = HostEndpoint(reactor, proxy.host, proxy.port, timeout_seconds)
        self._proxy = proxy
        uri = URI.fromBytes(str(proxy).encode("ascii"))
        self._handshakes = Handshakes(reactor, policy, uri) if proxy.is_tls else None

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect."""
        cast("Factory", protocolFactory).noisy = False  # else it logs each connection twice
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        try:
            if self._handshakes is not None:
                return await self._handshakes.connect(self._endpoint, factory)
            connected: IProtocol = await self._endpoint.connect(factory)
        except ConnectFailed as failure:  # of the handshake; its hint is at settings of assisted-service
            cause = failure.explanation.partition(";")[0]
            text = f"the proxy {self._proxy}: {cause}; {_CHECK_PROXY_TLS}"
            raise ConnectFailed(text, is_late=failure.is_late) from None
        except network.DNSLookupError:
            text = f"the name of the proxy {self._proxy} does not resolve; {_CHECK_PROXY}"
            raise ConnectFailed(text) from None
        except network.TimeoutError:
            text = f"no connection to the proxy {self._proxy} in time; {_CHECK_PROXY}"
            raise ConnectFailed(text, is_late=True) from None
        except network.ConnectError:
            text = f"the proxy {self._proxy} refuses the connection; {_CHECK_PROXY}"
            raise ConnectFailed(text) from None
        return connected


@implementer(IStreamClientEndpoint)
class TunnelEndpoint:
    """Connects to a server through a proxy, by CONNECT (RFC 9110 section 9.3.6).

    Args:
        policy: as of `ProxyEndpoint`.
        authority: host and port of the server.
        timeout_seconds: for the connection to the proxy, and again for its answer.
    """

    def __init__(
        self,
        reactor: PosixReactorBase,
        proxy: Proxy,
        policy: IPolicyForHTTPS,
        authority: str,
        timeout_seconds: float,
    ) -> None:
        self._clock = reactor
        self._proxy = proxy
        self._authority = authority
        self._timeout_seconds = timeout_seconds
        self._endpoint = ProxyEndpoint(reactor, proxy, policy, timeout_seconds)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect to the server."""
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        connected = await self._endpoint.connect(Factory.forProtocol(_Tunnel))
        tunnel = cast("_Tunnel", connected)
        answered = tunnel.request(self._render_request())
        try:
            status = await answered.addTimeout(self._timeout_seconds, self._clock, self._raise_late)
        except network.ConnectionClosed:
            text = f"the proxy {self._proxy} closed the connection; {_CHECK_PROXY}"
            raise ConnectFailed(text) from None
        if status // 100 != 2:  # noqa: PLR2004 - successful
            tunnel.abort()
            answer = f"answered CONNECT with status {status}" if status else "does not answer with HTTP"
            raise ConnectFailed(f"the proxy {self._proxy} {answer}; {_CHECK_PROXY}, and the log of the proxy")
        return tunnel.open(factory)

    def _render_request(self) -> bytes:
        lines = [f"CONNECT {self._authority} HTTP/1.1", f"Host: {self._authority}"]
        if self._proxy.authorization:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")

    def _raise_late(self, _: object, seconds: float) -> NoReturn:
        text = f"the proxy {self._proxy} did not answer CONNECT within {seconds:g} s"
        raise ConnectFailed(text, is_late=True)


class _Tunnel(Protocol):
    """Sends CONNECT; once the tunnel is open, all data is another protocol's."""

    def __init__(self) -> None:
        self._answered: Deferred[int] = Deferred(lambda _: self.abort())
        self._received = b""
        self._inner: IProtocol | None = None

    def request(self, head: bytes) -> Deferred[int]:
        """Send a request; the Deferred fires with the status of the answer, 0 if that is not HTTP."""
        self._tcp.write(head)
        return self._answered

    def open(self, factory: IProtocolFactory) -> IProtocol:
        inner = self._inner = cast("IProtocol", factory.buildProtocol(self._tcp.getPeer()))
        inner.makeConnection(self._tcp)
        return inner

    def abort(self) -> None:
        self._tcp.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        rest = data if self._answered.called else self._read_answer(data)
        if rest and self._inner is not None:
            self._inner.dataReceived(rest)

    def _read_answer(self, data: bytes) -> bytes:
        """Collect the head of the answer; return the data behind it."""
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end or len(head) > _MAX_HEAD_BYTES:
            status = _STATUS_LINE.match(head)
            self._answered.callback(int(status[1]) if status and end else 0)
        return rest

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._inner is not None:
            self._inner.connectionLost(reason)
        elif not self._answered.called:
            self._answered.errback(reason)

    @property
    def _tcp(self) -> ITCPTransport:
        return cast("ITCPTransport", self.transport)
