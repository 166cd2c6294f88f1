"""The TLS of all requests that threads send: which authorities are trusted, and by which rules."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def client_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities and those of a PEM file.

    The rules are those of Python 3.11 in all versions. From 3.13 on, Python by default refuses certificates
    without an Authority Key Identifier, and authorities whose Basic Constraints are not critical. Private
    authorities make such certificates, and curl and Go accept them.

    Args:
        ca_file: read now.
        insecure: True: certificates are not verified.

    Raises:
        ConfigurationError: `ca_file` cannot be read.
    """
    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # SSLError is one
            reason = getattr(error, "reason", None) or error.strerror
            raise ConfigurationError(f"the CA file {ca_file} cannot be read: {reason}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
