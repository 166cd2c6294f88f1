"""The TLS of all requests that threads send: which authorities are trusted, and by which rules."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def client_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities and those of a PEM file.

    The rules are those of Go, in all versions of Python:

    - Certificates need no Authority Key Identifier, and the Basic Constraints of authorities need not be
      critical: private authorities make such certificates. By default Python refuses them from 3.13 on.
    - An authority that is trusted needs no trusted issuer: a file may have an intermediate one alone. By
      default Python accepts that from 3.13 on.
    - A host is one of subjectAltName; the common name does not count.

    Args:
        ca_file: read now.
        insecure: True: certificates are not verified.

    Raises:
        ConfigurationError: `ca_file` cannot be read.
    """
    # Loading the system's authorities takes longer than all the rest.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if insecure else ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.hostname_checks_common_name = False
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
