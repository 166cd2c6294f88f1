"""Checks of TLS: the certificate, and which versions and ciphers the server speaks."""

from __future__ import annotations

import ssl
import warnings
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from socket import create_connection
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from service_identity import CertificateError, VerificationError
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address

from image_service.core.errors import ConfigurationError
from image_service.tools.doctor.outcomes import failed, passed, skipped, warned
from image_service.tools.doctor.rules import Rule, violation
from image_service.tools.doctor.web_client import SILENCE_SECONDS, describe_network_error, permissive_context

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.rules import ClientProfile
    from image_service.tools.doctor.target import ImageUrl

TLS_CHECKS = (
    "tls",
    "certificate-chain",
    "certificate-name",
    "certificate-dates",
    "certificate-key",
    "tls-versions",
    "tls-ciphers",
)

_SOON = timedelta(days=14)
_VERSIONS = {
    "TLS 1.0": ssl.TLSVersion.TLSv1,
    "TLS 1.1": ssl.TLSVersion.TLSv1_1,
    "TLS 1.2": ssl.TLSVersion.TLSv1_2,
    "TLS 1.3": ssl.TLSVersion.TLSv1_3,
}
_OLD_VERSIONS = {"TLS 1.0", "TLS 1.1"}
_CIPHER_FAMILIES = {
    "ECDHE with AES-GCM": "ECDHE+AESGCM",
    "ECDHE with AES-CBC": "ECDHE+AES:!AESGCM:!AESCCM",
    "RSA key exchange": "kRSA+AES",
}
_OLD_FAMILIES = {"ECDHE with AES-CBC", "RSA key exchange"}
_OLD_FIRMWARE = "ironic-image #360: firmware with old ciphers"
_OUTDATED_CODES = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def check_tls(
    url: ImageUrl, profile: ClientProfile | None, trusting: ssl.SSLContext
) -> Generator[CheckOutcome, None, bool]:
    """Yield the outcomes of `TLS_CHECKS`; return True if requests can be sent."""
    if not url.is_https:
        yield from (skipped(name, "the URL is http") for name in TLS_CHECKS)
        return True
    try:
        with _handshake(url, permissive_context()) as connection:
            content = connection.getpeercert(binary_form=True)
            version, cipher = connection.version(), connection.cipher()
    except OSError as error:
        yield failed(
            "tls", f"no TLS: {describe_network_error(error)}", "offer TLS 1.2 on this port, or use http"
        )
        return False
    yield passed("tls", f"{version} with {cipher[0] if cipher else 'an unknown cipher'}")
    yield _check_chain(url, profile, trusting)
    certificate = _parse(content)
    if certificate is None:
        names = ("certificate-name", "certificate-dates", "certificate-key")
        yield from (failed(name, "the certificate cannot be parsed", "issue another one") for name in names)
    else:
        yield _check_name(url, certificate, profile)
        yield _check_dates(certificate, datetime.now(UTC))
        yield _check_key(certificate, profile)
    versions = {name: _accepts_version(url, version) for name, version in _VERSIONS.items()}
    yield judge_versions(versions)
    yield _check_ciphers(url, can_speak=versions["TLS 1.2"])
    return True


@contextmanager
def _handshake(url: ImageUrl, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        create_connection((url.host, url.port), SILENCE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=url.host) as connection,
    ):
        yield connection


def _parse(content: bytes | None) -> x509.Certificate | None:
    try:
        return x509.load_der_x509_certificate(content or b"")
    except ValueError:
        return None


def trusting_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that verifies chains, but no names, by the system's authorities and those of a file.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    context = permissive_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_default_certs()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            reason = describe_network_error(error)
            raise ConfigurationError(f"--ca-file {ca_file} cannot be used: {reason}") from None
    return context


def _check_chain(url: ImageUrl, profile: ClientProfile | None, trusting: ssl.SSLContext) -> CheckOutcome:
    name = "certificate-chain"
    try:
        with _handshake(url, trusting):
            return passed(name, "an authority that this machine trusts issued the certificate")
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OUTDATED_CODES:
            remedy = "renew it, and compare the clocks of both machines"
            return failed(name, f"not valid now: {error.verify_message}", remedy)
        remedy = (
            "let the server send its intermediate certificates, and install the authority on the machine;"
            " --ca-file FILE trusts it here"
        )
        return violation(name, Rule.UNTRUSTED, profile, f"not trusted: {error.verify_message}", remedy)
    except OSError as error:
        return failed(name, f"the second handshake failed: {describe_network_error(error)}", "try again")


def _check_name(url: ImageUrl, certificate: x509.Certificate, profile: ClientProfile | None) -> CheckOutcome:
    name = "certificate-name"
    try:
        if url.is_address:
            verify_certificate_ip_address(certificate, url.host)
        else:
            verify_certificate_hostname(certificate, url.host)
    except (VerificationError, CertificateError):
        names = ", ".join(_alternative_names(certificate)) or "no name at all"
        remedy = f"issue a certificate whose subjectAltName has {url.host}"
        return failed(name, f"the certificate is for {names}, not for {url.host}", remedy)
    if url.host not in _alternative_names(certificate) and not url.is_address:
        detail, remedy = "only a wildcard matches", f"issue a certificate whose subjectAltName has {url.host}"
        return violation(name, Rule.WILDCARD, profile, detail, remedy)
    return passed(name, f"the certificate names {url.host}")


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [
        str(each.value).lower() for each in extension.value if isinstance(each, x509.DNSName | x509.IPAddress)
    ]


def _check_dates(certificate: x509.Certificate, now: datetime) -> CheckOutcome:
    name = "certificate-dates"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        remedy = "compare the clocks of both machines"
        return failed(name, f"not valid before {begin:%Y-%m-%d %H:%M} UTC", remedy)
    if now > end:
        return failed(name, f"expired on {end:%Y-%m-%d %H:%M} UTC", "renew the certificate")
    detail = f"valid until {end:%Y-%m-%d %H:%M} UTC"
    if end - now < _SOON:
        return warned(name, f"{detail}, for less than {_SOON.days} days", "renew the certificate")
    return passed(name, detail)


def _check_key(certificate: x509.Certificate, profile: ClientProfile | None) -> CheckOutcome:
    key = certificate.public_key()
    if isinstance(key, RSAPublicKey):
        return passed("certificate-key", f"RSA, {key.key_size} bits")
    kind = f"ECDSA, {key.curve.name}" if isinstance(key, EllipticCurvePublicKey) else "neither RSA nor ECDSA"
    remedy = "use a certificate with an RSA key, or http for old clients"
    return violation("certificate-key", Rule.ECDSA, profile, kind, remedy)


def _accepts_version(url: ImageUrl, version: ssl.TLSVersion) -> bool | None:
    """Return True if the server speaks a version; None: this machine does not."""
    context = permissive_context()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the old versions, which are only probed
            context.minimum_version = context.maximum_version = version
    except ValueError:
        return None
    try:
        with _handshake(url, context):
            return True
    except OSError as error:
        return None if getattr(error, "reason", "") == "NO_PROTOCOLS_AVAILABLE" else False


def judge_versions(accepted: Mapping[str, bool | None]) -> CheckOutcome:
    """Return the outcome for the versions that a server accepts; None: not known."""
    name = "tls-versions"
    spoken = {version for version, answer in accepted.items() if answer}
    text = ", ".join(sorted(spoken)) or "none of those that this machine speaks"
    if unknown := [version for version, answer in accepted.items() if answer is None]:
        text += f" (not known: {', '.join(unknown)})"
    if "TLS 1.2" in spoken:
        return passed(name, text)
    if "TLS 1.3" in spoken:
        return warned(name, f"{text} only ({_OLD_FIRMWARE})", "offer TLS 1.2 too")
    if spoken & _OLD_VERSIONS:
        return failed(name, f"{text} only, which current clients refuse (RFC 8996)", "offer TLS 1.2")
    return skipped(name, text)


def _check_ciphers(url: ImageUrl, *, can_speak: bool | None) -> CheckOutcome:
    name = "tls-ciphers"
    if not can_speak:
        return skipped(name, "the server does not speak TLS 1.2, whose ciphers this is about")
    spoken = {family for family, ciphers in _CIPHER_FAMILIES.items() if _accepts_ciphers(url, ciphers)}
    text = f"TLS 1.2 with {', '.join(sorted(spoken))}"
    if spoken & _OLD_FAMILIES:
        return passed(name, text)
    remedy = "if firmware refuses the connection, offer older ciphers or http (here: TLS_LEGACY_CIPHERS)"
    return warned(name, f"{text} only ({_OLD_FIRMWARE})", remedy)


def _accepts_ciphers(url: ImageUrl, ciphers: str) -> bool:
    context = permissive_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    try:
        with _handshake(url, context):
            return True
    except OSError:
        return False
