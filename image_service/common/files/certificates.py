"""A server's certificate and private key in PEM files: that they are usable, and until when."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigurationError, describe_os_error

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

RENEWAL_PERIOD = timedelta(days=14)
"""How long before its end a certificate is reported."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def read_not_after(path: Path) -> datetime:
    """Return the end of a certificate's validity, in UTC.

    Args:
        path: PEM; of several certificates the first one counts, which is the server's own.

    Raises:
        ConfigurationError: the file cannot be read, or does not begin with a valid certificate.
    """
    return _read_certificate(path).not_valid_after_utc


def read_private_key(key_file: Path, certificate_file: Path) -> PrivateKeyTypes:
    """Return the private key of a certificate.

    Args:
        key_file: PEM, without passphrase.
        certificate_file: PEM, the server's certificate first.

    Raises:
        ConfigurationError: a file cannot be read, or has other content; the key needs a passphrase;
            the certificate is for another key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - slow to import, as all of it
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - same

    key_text, certificate_text = _read(key_file), _read(certificate_file)
    if not _PRIVATE_KEY.search(key_text):
        if _CERTIFICATE.search(key_text) and _PRIVATE_KEY.search(certificate_text):
            raise ConfigurationError(
                f"the key file {key_file} contains a certificate, and the certificate file"
                f" {certificate_file} a private key: exchange them"
            )
        raise ConfigurationError(f"the key file {key_file} contains no private key in PEM format")
    try:
        key = serialization.load_pem_private_key(key_text, None)
    except TypeError:  # cryptography raises it if the key is encrypted
        raise ConfigurationError(
            f"the key file {key_file} needs a passphrase, and the service has none: store the key without"
            f" passphrase (openssl pkey -in {key_file.name} -out NEW)"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"the private key in {key_file} is damaged, or of an unsupported type"
        ) from None
    public = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    certificate = _read_certificate(certificate_file)
    if key.public_key().public_bytes(*public) != certificate.public_key().public_bytes(*public):
        raise ConfigurationError(
            f"{certificate_file} and {key_file} are not a pair: the certificate is for another key"
        )
    return key


def describe_end(path: Path, not_after: datetime, now: datetime) -> str | None:
    """Return a warning if a certificate has expired or ends within `RENEWAL_PERIOD`; else None.

    Args:
        path: of the certificate, named in the warning.
        now: with a time zone.
    """
    end = not_after.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if now > not_after:
        return f"the certificate {path} expired on {end}: clients reject it; renew it"
    if not_after - now > RENEWAL_PERIOD:
        return None
    days = (not_after - now).days
    remaining = "less than a day" if days == 0 else f"{days} day{'s' if days > 1 else ''}"
    return f"the certificate {path} expires in {remaining}, on {end}: renew it"


def _read_certificate(path: Path) -> x509.Certificate:
    from cryptography import x509  # noqa: PLC0415 - slow to import

    text = _read(path)
    if not _CERTIFICATE.search(text):
        raise ConfigurationError(f"the certificate file {path} contains no certificate in PEM format")
    try:
        return x509.load_pem_x509_certificate(text)
    except ValueError:
        raise ConfigurationError(f"the first certificate in {path} is damaged") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(describe_os_error(error)) from None
