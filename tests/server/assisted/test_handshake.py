"""Handshakes that fail: at once, and with a sentence that says why, and what to check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from service_identity import CertificateError
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.core.errors import UpstreamError, UpstreamTimeout
from image_service.server.assisted import handshake
from image_service.server.assisted.client import AssistedService
from tests.pytwisted import ensure_deferred
from tests.server.assisted.calling import ID, client_of, error_of, response
from tests.server.assisted.clocked import ClockedReactor
from tests.server.assisted.upstream import IGNITION, OK, issue, upstream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.errors import ImageServiceError
    from tests.conftest import LoggedFailures

NO_ANSWER = f"assisted-service: no answer for the Ignition config of infra-env {ID}: "
SET_HTTP = "does it speak HTTP? then set ASSISTED_SERVICE_SCHEME=http"
SET_HTTPS = "does it speak HTTPS? then set ASSISTED_SERVICE_SCHEME=https"
CHECK_CERTIFICATE = "check the certificate of assisted-service, and the clocks"
CHECK_CA_FILE = "check ASSISTED_SERVICE_API_TRUSTED_CA_FILE"
DAY = timedelta(days=1)


async def failure_of(reactor: EPollReactor, base_url: str, ca_file: Path | None = None) -> ImageServiceError:
    assisted = AssistedService(reactor, base_url, ca_file=ca_file)
    try:
        return await error_of(assisted.fetch_ignition(ID, None, None))
    finally:
        await assisted.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"hello\n", b"<!DOCTYPE HTML>" * 9])
@ensure_deferred
async def test_server_that_answers_without_tls_is_named_at_once(reactor: EPollReactor, answer: bytes) -> None:
    async with upstream(reactor) as server:
        server.greeting = answer
        error = await failure_of(reactor, f"https://127.0.0.1:{server.port}")
    assert isinstance(error, UpstreamError)
    assert error.detail == f"{NO_ANSWER}it does not answer with TLS; {SET_HTTP}"


@ensure_deferred
async def test_server_that_waits_for_a_head_is_given_two_seconds(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    async with upstream(reactor) as server:
        failing = Deferred.fromCoroutine(failure_of(clocked, f"https://127.0.0.1:{server.port}"))
        while not server.connections:
            await deferLater(reactor, 0.005)
        clocked.clock.advance(handshake.FIRST_SECONDS - 0.1)
        assert not failing.called
        clocked.clock.advance(0.1)
        error = await failing
    assert isinstance(error, UpstreamTimeout)
    assert error.detail == f"{NO_ANSWER}no TLS handshake within 2 s; {SET_HTTP}"


@ensure_deferred
async def test_server_that_is_late_is_given_twice_the_time(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    async with upstream(reactor) as server:
        assisted = AssistedService(clocked, f"https://127.0.0.1:{server.port}")
        for seconds in (2, 4, 8, 10, 10):
            failing = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
            while not server.connections:
                await deferLater(reactor, 0.005)
            clocked.clock.advance(seconds)
            assert f"no TLS handshake within {seconds} s" in (await failing).detail
            while server.connections:
                await deferLater(reactor, 0.005)
        await assisted.close()


@ensure_deferred
async def test_server_that_has_completed_a_handshake_is_given_more_time(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    clocked: Any = ClockedReactor(reactor)
    async with upstream(reactor, certificate=issue(authority, tmp_path, "127.0.0.1")) as server:
        server.close = True
        port = server.port
        assisted = AssistedService(clocked, f"https://127.0.0.1:{port}", ca_file=tmp_path / "ca.pem")
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
    async with upstream(reactor, port=port) as silent:
        failing = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        while not silent.connections:
            await deferLater(reactor, 0.005)
        clocked.clock.advance(handshake.LATER_SECONDS - 0.1)
        assert not failing.called
        clocked.clock.advance(0.1)
        assert "no TLS handshake within 10 s" in (await failing).detail
    await assisted.close()


@ensure_deferred
async def test_server_that_closes_in_the_handshake_is_reported(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server:
        failing = Deferred.fromCoroutine(failure_of(reactor, f"https://127.0.0.1:{server.port}"))
        while not server.connections:
            await deferLater(reactor, 0.005)
        server.connections[0].abort()
        error = await failing
    assert error.detail == f"{NO_ANSWER}the connection ended in the TLS handshake; {SET_HTTP}"


def expired(authority: trustme.CA) -> trustme.LeafCert:
    now = datetime.now(UTC)
    return authority.issue_cert("127.0.0.1", not_before=now - 2 * DAY, not_after=now - DAY)


def early(authority: trustme.CA) -> trustme.LeafCert:
    now = datetime.now(UTC)
    return authority.issue_cert("127.0.0.1", not_before=now + DAY, not_after=now + 2 * DAY)


def of_another_authority(_: trustme.CA) -> trustme.LeafCert:
    return trustme.CA().issue_cert("127.0.0.1")


def of_another_host(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("127.0.0.2")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (expired, f"its certificate, or that of its issuer, has expired; {CHECK_CERTIFICATE}"),
        (early, f"its certificate, or that of its issuer, is not valid yet; {CHECK_CERTIFICATE}"),
        (of_another_authority, f"the issuer of its certificate is not trusted; {CHECK_CA_FILE}"),
        (
            of_another_host,
            "its certificate is not for this host; check ASSISTED_SERVICE_HOST and the certificate",
        ),
    ],
)
@ensure_deferred
async def test_reason_why_a_certificate_is_refused_is_told(
    reactor: EPollReactor, tmp_path: Path, make: Callable[[trustme.CA], trustme.LeafCert], reason: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    make(authority).private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    async with upstream(reactor, certificate=tmp_path / "server.pem") as server:
        error = await failure_of(reactor, f"https://127.0.0.1:{server.port}", tmp_path / "ca.pem")
        assert server.requests == []
    assert error.detail == NO_ANSWER + reason


def write_certificate(path: Path, signer: trustme.CA | None, *names: x509.GeneralName) -> None:
    """Write a certificate for these names, or for none, with its key; without a signer it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(signer.cert_pem.bytes()).subject if signer else subject
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signing_key = load_pem_private_key(signer.private_key_pem.bytes(), None) if signer else key
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
    certificate = builder.sign(signing_key, hashes.SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem + certificate.public_bytes(Encoding.PEM))


@ensure_deferred
async def test_self_signed_certificate_is_told(reactor: EPollReactor, tmp_path: Path) -> None:
    write_certificate(tmp_path / "server.pem", None, x509.IPAddress(ip_address("127.0.0.1")))
    async with upstream(reactor, certificate=tmp_path / "server.pem") as server:
        error = await failure_of(reactor, f"https://127.0.0.1:{server.port}")
    assert error.detail == f"{NO_ANSWER}its certificate is self-signed and not trusted; {CHECK_CA_FILE}"


@ensure_deferred
async def test_certificate_without_names_is_refused(
    reactor: EPollReactor, tmp_path: Path, logged_failures: LoggedFailures
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    write_certificate(tmp_path / "server.pem", authority)
    async with upstream(reactor, certificate=tmp_path / "server.pem") as server:
        error = await failure_of(reactor, f"https://127.0.0.1:{server.port}", tmp_path / "ca.pem")
        assert server.requests == []
    assert error.detail == f"{NO_ANSWER}its certificate has no subjectAltName; {CHECK_CERTIFICATE}"
    assert logged_failures.flush(CertificateError), "Twisted logs it, and accepts the certificate"


@ensure_deferred
async def test_http_towards_tls_is_told(reactor: EPollReactor, tmp_path: Path) -> None:
    async with upstream(reactor, certificate=issue(trustme.CA(), tmp_path, "127.0.0.1")) as server:
        error = await failure_of(reactor, f"http://127.0.0.1:{server.port}")
    assert isinstance(error, UpstreamError)
    assert error.detail.startswith(NO_ANSWER)
    assert SET_HTTPS in error.detail


@pytest.mark.parametrize(
    "page", [b"Client sent an HTTP request to an HTTPS server.\n", b"<center>... sent to HTTPS port</center>"]
)
@ensure_deferred
async def test_400_of_a_tls_server_is_told_as_a_wrong_scheme(reactor: EPollReactor, page: bytes) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer, server.close = b"HTTP/1.0 400 Bad Request\r\n\r\n" + page, True
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert isinstance(error, UpstreamError)
    assert error.detail == f"{NO_ANSWER}it speaks HTTPS; set ASSISTED_SERVICE_SCHEME=https"


@ensure_deferred
async def test_connection_that_ends_before_the_answer_names_the_scheme(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer, server.close = b"", True
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert error.detail == (
        f"{NO_ANSWER}the connection ended before the answer; {SET_HTTPS}; else see the log of"
        " assisted-service"
    )


@ensure_deferred
async def test_400_without_a_word_of_https_stays_one(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = response("400 Bad Request", b'{"reason": "no"}')
        assert (await error_of(assisted.fetch_ignition(ID, None, None))).code == "request-invalid"
        server.answer = OK
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
