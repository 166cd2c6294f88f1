"""TLS handshakes with assisted-service: complete in time, or one sentence says why not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn, cast

from OpenSSL import SSL
from service_identity import CertificateError, VerificationError
from twisted.internet import error as network
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory, Protocol, connectionDone
from zope.interface import implementer

from image_service.common.http.trust_root import check_names
from image_service.server.assisted.failures import ConnectFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.x509 import Certificate
    from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
    from twisted.protocols.tls import TLSMemoryBIOProtocol
    from twisted.python.failure import Failure
    from twisted.web.client import URI
    from twisted.web.iweb import IPolicyForHTTPS

FIRST_SECONDS = 2.0
"""For the first handshake: a server that speaks plain HTTP may wait for more bytes, without an answer.

After one that was late, the next ones get twice its time: the server may only be slow.
"""
LATER_SECONDS = 10.0
"""At most, and once a handshake has shown that the server speaks TLS."""

_CHECK_SCHEME = "does it speak HTTP? then set ASSISTED_SERVICE_SCHEME=http"
_CHECK_HOST = "check ASSISTED_SERVICE_HOST"
_CHECK_CA_FILE = "check ASSISTED_SERVICE_API_TRUSTED_CA_FILE"
_CHECK_CERTIFICATE = "check the certificate of assisted-service, and the clocks"
# Reasons of OpenSSL's errors; the latter are of bytes that are not a TLS record.
_REFUSED = "certificate verify failed"
_NOT_TLS = {"wrong version number", "packet length too long", "record layer failure", "unknown protocol"}


class Handshakes:
    """Connects to one server."""

    def __init__(self, clock: IReactorTime, policy: IPolicyForHTTPS, uri: URI) -> None:
        self._clock = clock
        self._policy = policy
        self._uri = uri
        self._timeout_seconds = FIRST_SECONDS

    async def connect(self, endpoint: IStreamClientEndpoint, factory: IProtocolFactory) -> IProtocol:
        """Connect, and return the factory's protocol once the handshake is complete.

        Raises:
            ConnectFailed: the handshake has failed.
        """
        name = self._uri.host.removesuffix(b".")  # of the root, which is not in certificates
        try:
            creator = self._policy.creatorForNetloc(name, self._uri.port)
        except UnicodeError:  # of Twisted, by the rules of IDNA 2008
            raise ConnectFailed(f"no certificate can have its host name; {_CHECK_HOST}") from None
        listeners = Factory.forProtocol(_HandshakeListener)
        listeners.noisy = False  # else it logs each connection twice
        connected = await wrapClientTLS(creator, endpoint).connect(listeners)
        listener = cast("_HandshakeListener", connected)
        seconds = self._timeout_seconds
        late = f"no TLS handshake within {seconds:g} s; {_CHECK_SCHEME}"
        try:
            await listener.completed.addTimeout(seconds, self._clock, _raise_late(late))
        except ConnectFailed:
            # At most twice this one's time: others may have been late at the same time.
            self._timeout_seconds = max(self._timeout_seconds, min(2 * seconds, LATER_SECONDS))
            raise
        except (SSL.Error, VerificationError, network.ConnectionClosed) as error:
            raise ConnectFailed(_explain(error, listener.connection)) from None
        try:
            check_names(listener.connection, name.decode("ascii"))
        except CertificateError:
            listener.abort()
            raise ConnectFailed(f"its certificate has no subjectAltName; {_CHECK_CERTIFICATE}") from None
        self._timeout_seconds = LATER_SECONDS
        return listener.replace_by(factory)


@implementer(IHandshakeListener)
class _HandshakeListener(Protocol):
    """Waits for the end of the handshake, then leaves its connection to another protocol."""

    def __init__(self) -> None:
        self.completed: Deferred[None] = Deferred(lambda _: self.abort())

    def handshakeCompleted(self) -> None:
        self.completed.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.completed.called:
            self.completed.errback(reason)

    def abort(self) -> None:
        self._tls.abortConnection()

    def replace_by(self, factory: IProtocolFactory) -> IProtocol:
        tls = self._tls
        protocol = cast("IProtocol", factory.buildProtocol(tls.getPeer()))
        tls.wrappedProtocol = protocol
        protocol.makeConnection(tls)
        return protocol

    @property
    def connection(self) -> SSL.Connection:
        return cast("SSL.Connection", self._tls.getHandle())

    @property
    def _tls(self) -> TLSMemoryBIOProtocol:
        return cast("TLSMemoryBIOProtocol", self.transport)


def _explain(error: Exception, connection: SSL.Connection) -> str:
    """Return OpenSSL's own texts at most, which contain neither the peer's name nor its bytes."""
    if isinstance(error, VerificationError):
        return "its certificate is not for this host; check ASSISTED_SERVICE_HOST and the certificate"
    if isinstance(error, network.ConnectionClosed):
        return f"the connection ended in the TLS handshake; {_CHECK_SCHEME}"
    stack = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reasons = [reason for _, _, reason in stack]
    if not reasons or _NOT_TLS.intersection(reasons):
        return f"it does not answer with TLS; {_CHECK_SCHEME}"
    if _REFUSED in reasons:
        return _explain_refusal(connection.get_verified_chain(as_cryptography=True) or [])
    return f"TLS failed: {', '.join(reasons)}; see the log of assisted-service"


def _explain_refusal(chain: list[Certificate]) -> str:
    """Say why a certificate was refused. The chain begins with it, and ends where OpenSSL found a fault."""
    now = datetime.now(UTC)
    if any(certificate.not_valid_after_utc < now for certificate in chain):
        return f"its certificate, or that of its issuer, has expired; {_CHECK_CERTIFICATE}"
    if any(certificate.not_valid_before_utc > now for certificate in chain):
        return f"its certificate, or that of its issuer, is not valid yet; {_CHECK_CERTIFICATE}"
    if len(chain) == 1 and chain[0].issuer == chain[0].subject:
        return f"its certificate is self-signed and not trusted; {_CHECK_CA_FILE}"
    return f"the issuer of its certificate is not trusted; {_CHECK_CA_FILE}"


def _raise_late(text: str) -> Callable[[object, float], NoReturn]:
    def on_timeout(_: object, __: float) -> NoReturn:
        raise ConnectFailed(text, is_late=True)

    return on_timeout
