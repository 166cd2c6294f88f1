"""The certificate authority of the stand-in, and its server certificate for loopback.

    ca.pem       the authority's certificate, which clients trust
    ca.key       its key, mode 0600
    server.pem   certificate and key of the server, mode 0600

Each file is replaced atomically, so a crash leaves the old one or the new one. A name constraint limits the
authority to loopback.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from image_service.common.files.atomic import atomic_target
from image_service.common.files.modes import private_mode
from image_service.common.files.private_files import restrict_to_owner

if TYPE_CHECKING:
    from pathlib import Path

_CA_DAYS = 3650
_SERVER_DAYS = 365
_RENEW_DAYS = 30
_NAMES = (
    x509.IPAddress(ip_address("127.0.0.1")),
    x509.IPAddress(ip_address("::1")),
    x509.DNSName("localhost"),
)
_PERMITTED = (
    x509.IPAddress(ip_network("127.0.0.0/8")),
    x509.IPAddress(ip_network("::1/128")),
    x509.DNSName("localhost"),
)


@attrs.frozen
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = attrs.field(repr=False)


@attrs.frozen
class CertificateFiles:
    """The files of the certificates.

    Args:
        ca_file: the authority's certificate, PEM.
        server_file: the server's certificate and key, PEM.
    """

    ca_file: Path
    server_file: Path


def prepare_certificates(directory: Path, now: datetime) -> CertificateFiles:
    """Make the certificates that are missing, damaged or about to expire; all are valid for a month at least.

    Args:
        directory: an existing directory that no other user can read.
        now: UTC.
    """
    files = CertificateFiles(directory / "ca.pem", directory / "server.pem")
    authority = _load_authority(directory, now)
    if authority is None:
        authority = _make_authority(now)
        _write(directory / "ca.key", _key_pem(authority.key), 0o600)
        _write(files.ca_file, _certificate_pem(authority.certificate), 0o644)
    restrict_to_owner(directory / "ca.key")
    if not _is_valid_server(files.server_file, authority, now):
        _write(files.server_file, _make_server(authority, now), 0o600)
    restrict_to_owner(files.server_file)
    return files


def _load_authority(directory: Path, now: datetime) -> _Authority | None:
    """Return the stored authority if its certificate and key match and remain valid."""
    try:
        certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    except (OSError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return _Authority(certificate, key) if _remains_valid(certificate, now) else None


def _is_valid_server(server_file: Path, authority: _Authority, now: datetime) -> bool:
    """Return True if this authority issued the server's certificate, and it remains valid."""
    try:
        certificate = x509.load_pem_x509_certificate(server_file.read_bytes())
        certificate.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    return _remains_valid(certificate, now)


def _remains_valid(certificate: x509.Certificate, now: datetime) -> bool:
    renewed_at = certificate.not_valid_after_utc - timedelta(days=_RENEW_DAYS)
    return certificate.not_valid_before_utc <= now <= renewed_at


def _make_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "image-service standalone CA")])
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, key, now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.NameConstraints(_PERMITTED, None), critical=True)
    )
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _make_server(authority: _Authority, now: datetime) -> bytes:
    """Return certificate and key of the server, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(name, authority.certificate.subject, key, now, _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
        .add_extension(issuer, critical=False)
    )
    return _certificate_pem(builder.sign(authority.key, hashes.SHA256())) + _key_pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically; other users can never read its bytes unless `mode` lets them."""
    with atomic_target(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, private_mode(mode))  # whatever the umask is
            file.write(content)
