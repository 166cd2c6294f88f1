"""Connections to servers whose certificate is refused."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL
from service_identity import CertificateError
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import ContextFactory
from twisted.internet.task import deferLater

from image_service.tools.loadtest.traffic.connection import RequestFailed
from image_service.tools.loadtest.traffic.dialer import Dialer
from image_service.tools.loadtest.traffic.plan import ServerOrigin
from image_service.tools.loadtest.traffic.tls import https_policy
from tests.chains import REFUSED, TRUSTED, Chain, write_chain
from tests.pytwisted import ensure_deferred
from tests.server.assisted.clocked import ClockedReactor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import ITCPTransport

    from tests.conftest import LoggedFailures

HOST = "127.0.0.1"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@attrs.frozen
class Contexts(ContextFactory):
    """Returns a given context."""

    context: SSL.Context

    def getContext(self) -> SSL.Context:
        return self.context


def context(certificate: trustme.LeafCert) -> SSL.Context:
    """Return a server context with a certificate."""
    made = SSL.Context(SSL.TLS_SERVER_METHOD)
    certificate.configure_cert(made)
    return made


def context_of(chain: Chain) -> SSL.Context:
    """Return a server context with the certificates of a chain."""
    made = SSL.Context(SSL.TLS_SERVER_METHOD)
    made.use_certificate_chain_file(str(chain.certificate))
    made.use_privatekey_file(str(chain.certificate))
    return made


def asking_for_certificates(certificate: trustme.LeafCert) -> SSL.Context:
    """Return a context that requires client certificates; in TLS 1.2, where refusal ends both sides."""
    made = context(certificate)
    made.set_max_proto_version(SSL.TLS1_2_VERSION)
    made.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    return made


def self_signed() -> SSL.Context:
    """Return a context with a self-signed certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + DAY)
    host = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(HOST))])
    made = SSL.Context(SSL.TLS_SERVER_METHOD)
    made.use_privatekey(key)
    made.use_certificate(builder.add_extension(host, critical=True).sign(key, hashes.SHA256()))
    return made


@asynccontextmanager
async def listening(
    reactor: EPollReactor, shown: SSL.Context | type[Protocol]
) -> AsyncIterator[ServerOrigin]:
    """Listen on a free port, with TLS or with a plain protocol."""
    if isinstance(shown, SSL.Context):
        port: Any = reactor.listenSSL(0, Factory.forProtocol(Protocol), Contexts(shown), interface=HOST)
    else:
        port = reactor.listenTCP(0, Factory.forProtocol(shown), interface=HOST)
    number = port.getHost().port
    try:
        yield ServerOrigin("https", HOST, number, f"{HOST}:{number}")
    finally:
        await maybeDeferred(port.stopListening)


class Chatty(Protocol):
    """Sends a greeting in plain text."""

    transport: ITCPTransport

    def connectionMade(self) -> None:
        self.transport.write(b"220 ready\r\n")
        self.transport.loseConnection()


class Aborting(Protocol):
    """Resets the connection."""

    transport: ITCPTransport

    def dataReceived(self, _: bytes) -> None:
        self.transport.abortConnection()


async def connect(reactor: Any, origin: ServerOrigin, ca_file: Path | None, *, insecure: bool = False) -> str:
    """Connect and close; return the kind of the error."""
    policy = https_policy(ca_file, insecure=insecure)
    dialer = Dialer(reactor, {origin: [HOST]}, policy, clock=time.monotonic, timeout_seconds=60)
    try:
        connection = await dialer.connect(origin, 0)
    except RequestFailed as failed:
        return failed.kind
    connection.close()
    return ""


class Silent(Protocol):
    """Counts connections, and never responds."""

    connections = 0

    def connectionMade(self) -> None:
        Silent.connections += 1


AUTHORITY = trustme.CA()
CERTIFICATES = {
    "": AUTHORITY.issue_cert(HOST),
    "tls-expired": AUTHORITY.create_child_ca().issue_cert(HOST, not_after=NOW - DAY),
    "tls-not-yet-valid": AUTHORITY.issue_cert(HOST, not_before=NOW + DAY, not_after=NOW + 2 * DAY),
    "tls-wrong-name": AUTHORITY.issue_cert("other.example"),
}


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@ensure_deferred
async def test_certificate_has_the_name_without_the_dot_of_the_root(
    reactor: EPollReactor, ca_file: Path
) -> None:
    async with listening(reactor, context(AUTHORITY.issue_cert("images.svc"))) as origin:
        absolute = attrs.evolve(origin, host="images.svc.")
        assert await connect(reactor, absolute, ca_file) == ""


@pytest.mark.parametrize("kind", CERTIFICATES)
@ensure_deferred
async def test_certificate_error_is_named_by_its_cause(
    reactor: EPollReactor, ca_file: Path, kind: str
) -> None:
    async with listening(reactor, context(CERTIFICATES[kind])) as origin:
        assert await connect(reactor, origin, ca_file) == kind


@ensure_deferred
async def test_unknown_authority_is_untrusted(reactor: EPollReactor, ca_file: Path) -> None:
    root = trustme.CA()
    between = root.create_child_ca()
    with_root = context(between.issue_cert(HOST))
    with_root.add_extra_chain_cert(x509.load_pem_x509_certificate(root.cert_pem.bytes()))
    for shown in (context(root.issue_cert(HOST)), context(between.issue_cert(HOST)), with_root):
        async with listening(reactor, shown) as origin:
            assert await connect(reactor, origin, ca_file) == "tls-untrusted"


@pytest.mark.parametrize("name", TRUSTED)
@ensure_deferred
async def test_certificate_that_go_trusts_is_trusted(
    reactor: EPollReactor, name: str, tmp_path: Path
) -> None:
    chain = write_chain(name, tmp_path)
    async with listening(reactor, context_of(chain)) as origin:
        assert not await connect(reactor, origin, chain.ca_file)


@pytest.mark.parametrize("name", REFUSED)
@ensure_deferred
async def test_certificate_that_go_refuses_is_refused(
    reactor: EPollReactor, name: str, tmp_path: Path, logged_failures: LoggedFailures
) -> None:
    chain = write_chain(name, tmp_path)
    async with listening(reactor, context_of(chain)) as origin:
        assert (await connect(reactor, origin, chain.ca_file)).startswith("tls")
    logged_failures.flush(CertificateError)  # Twisted logs it, and accepts the certificate


@ensure_deferred
async def test_certificate_without_names_is_told_unless_nothing_is_verified(
    reactor: EPollReactor, tmp_path: Path, logged_failures: LoggedFailures
) -> None:
    chain = write_chain("common name alone", tmp_path)
    async with listening(reactor, context_of(chain)) as origin:
        assert await connect(reactor, origin, chain.ca_file) == "tls-no-name"
        assert not await connect(reactor, origin, None, insecure=True)
    assert logged_failures.flush(CertificateError)


@ensure_deferred
async def test_self_signed_certificate_is_untrusted(reactor: EPollReactor, ca_file: Path) -> None:
    async with listening(reactor, self_signed()) as origin:
        assert await connect(reactor, origin, ca_file) == "tls-untrusted"


@pytest.mark.parametrize(("other", "kind"), [(Chatty, "tls"), (Aborting, "reset")])
@ensure_deferred
async def test_other_errors_are_not_certificate_errors(
    reactor: EPollReactor, other: type[Protocol], kind: str
) -> None:
    async with listening(reactor, other) as origin:
        assert await connect(reactor, origin, None) == kind


@ensure_deferred
async def test_insecure_client_never_blames_the_certificate(reactor: EPollReactor) -> None:
    """The certificate would fail verification, but another error ends the handshake."""
    shown = asking_for_certificates(trustme.CA().issue_cert(HOST))
    async with listening(reactor, shown) as origin:
        assert await connect(reactor, origin, None, insecure=True) == "tls"


@ensure_deferred
async def test_hanging_handshake_is_a_connect_timeout(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    before = Silent.connections
    async with listening(reactor, Silent) as origin:
        connecting = Deferred.fromCoroutine(connect(clocked, origin, None))
        while Silent.connections == before:
            await deferLater(reactor, 0.005)
        clocked.clock.advance(60)
        assert await connecting == "connect-timeout"
