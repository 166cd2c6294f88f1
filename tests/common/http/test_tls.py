"""Certificates of private authorities: the same are trusted on every Python."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from image_service.common.http.client import HttpClient
from image_service.common.http.errors import UntrustedCertificate
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import ConfigurationError
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from pathlib import Path


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _write_lax_chain(directory: Path) -> ssl.SSLContext:
    """Write ``ca.pem``, whose Basic Constraints are not critical; return the context of a server.

    Neither its certificate nor the authority's has an Authority Key Identifier.
    """
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = (
        _builder("lax", "lax", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    leaf = (
        _builder("127.0.0.1", "lax", key)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    (directory / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (directory / "leaf.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + leaf.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "leaf.pem")
    return context


def test_certificate_without_key_identifiers_is_trusted(tmp_path: Path) -> None:
    with running(_write_lax_chain(tmp_path)) as server:
        url = server.serve("/a", Reply(b"body"))
        context = client_context(tmp_path / "ca.pem")
        with HttpClient(lambda: context, RequestLimits()).send("GET", url, {}) as response:
            assert response.read(9) == b"body"
        with pytest.raises(UntrustedCertificate, match="certificate: "):  # noqa: SIM117 - the second raises
            with HttpClient(client_context, RequestLimits()).send("GET", url, {}):
                pass


def test_rules_are_the_same_on_every_python() -> None:
    context = client_context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_unreadable_authorities_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no\.pem cannot be read: No such file"):
        client_context(tmp_path / "no.pem")
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"text cannot be read: NO_CERTIFICATE_OR_CRL_FOUND"):
        client_context(tmp_path / "text")
