"""Certificates for localhost as private authorities make them: those that Go trusts, and others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NOW = datetime.now(UTC)
_DAY = timedelta(days=1)
_HOSTS = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])


@attrs.frozen
class Chain:
    """What a server shows, and what its client trusts.

    Args:
        certificate: file of the server's key and certificates.
        ca_file: the client's authorities.
    """

    certificate: Path
    ca_file: Path


@attrs.frozen
class _Issued:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def _issue(
    subject: str,
    issuer: _Issued | None,
    *extensions: x509.ExtensionType,
    critical: bool = False,
    days: int = 1,
) -> _Issued:
    """Issue a certificate without key identifiers; without an issuer it is self-signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else [])
    builder = x509.CertificateBuilder(
        issuer.certificate.subject if issuer else name,
        name,
        key.public_key(),
        x509.random_serial_number(),
        _NOW - 2 * _DAY,
        _NOW + days * _DAY,
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical)
    return _Issued(builder.sign(issuer.key if issuer else key, SHA256()), key)


def _authority(name: str, issuer: _Issued | None = None, *, critical: bool = True) -> _Issued:
    return _issue(name, issuer, x509.BasicConstraints(ca=True, path_length=None), critical=critical)


def _leaf(issuer: _Issued, name: str = "server", days: int = 1) -> _Issued:
    return _issue(name, issuer, _HOSTS, days=days)


def _without_key_identifiers() -> tuple[list[_Issued], _Issued]:
    root = _authority("root")
    return [_leaf(root)], root


def _basic_constraints_not_critical() -> tuple[list[_Issued], _Issued]:
    root = _authority("root", critical=False)
    return [_leaf(root)], root


def _without_subject() -> tuple[list[_Issued], _Issued]:
    root = _authority("root")
    return [_leaf(root, "")], root


def _intermediate_alone() -> tuple[list[_Issued], _Issued]:
    between = _authority("between", _authority("root"))
    return [_leaf(between)], between


def _intermediate_shown_too() -> tuple[list[_Issued], _Issued]:
    between = _authority("between", _authority("root"))
    return [_leaf(between), between], between


def _server_itself() -> tuple[list[_Issued], _Issued]:
    leaf = _leaf(_authority("root"))
    return [leaf], leaf


def _another_root() -> tuple[list[_Issued], _Issued]:
    return [_leaf(_authority("root"))], _authority("root")


def _common_name_alone() -> tuple[list[_Issued], _Issued]:
    root = _authority("root")
    return [_issue("localhost", root)], root


def _expired() -> tuple[list[_Issued], _Issued]:
    root = _authority("root")
    return [_leaf(root, days=-1)], root


def _issued_by_no_authority() -> tuple[list[_Issued], _Issued]:
    root = _authority("root")
    other = _leaf(root, "other")
    return [_leaf(other), other], root


_MAKERS: dict[str, Callable[[], tuple[list[_Issued], _Issued]]] = {
    "without key identifiers": _without_key_identifiers,
    "basic constraints not critical": _basic_constraints_not_critical,
    "without subject": _without_subject,
    "intermediate alone": _intermediate_alone,
    "intermediate shown too": _intermediate_shown_too,
    "server itself": _server_itself,
    "another root": _another_root,
    "common name alone": _common_name_alone,
    "expired": _expired,
    "issued by no authority": _issued_by_no_authority,
}
REFUSED = ("another root", "common name alone", "expired", "issued by no authority")
TRUSTED = tuple(name for name in _MAKERS if name not in REFUSED)


def write_chain(name: str, directory: Path) -> Chain:
    """Write the files of one of `TRUSTED` or `REFUSED`."""
    shown, trusted = _MAKERS[name]()
    chain = Chain(directory / "server.pem", directory / "ca.pem")
    chain.certificate.write_bytes(shown[0].key_pem + b"".join(each.pem for each in shown))
    chain.ca_file.write_bytes(trusted.pem)
    return chain
