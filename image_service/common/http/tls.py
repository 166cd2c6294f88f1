"""The TLS of all requests that threads send: which authorities are trusted, and by which rules."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from image_service.core.errors import ConfigurationError


def client_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """Return a context as `new_context` does, which others may have too: it must not be changed.

    To load the system's authorities takes 30 ms; they are loaded again after they have changed.
    """
    if ca_file is None and not insecure:
        return _system_context(system_state())
    return new_context(ca_file, insecure=insecure)


def system_state() -> tuple[object, ...]:
    """Return what differs if the system's authorities, where OpenSSL looks for them, have changed."""
    paths = ssl.get_default_verify_paths()
    found = (path.stat() for path in map(Path, filter(None, (paths.cafile, paths.capath))))
    return paths, *((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)


@lru_cache(maxsize=1)
def _system_context(_state: tuple[object, ...]) -> ssl.SSLContext:
    return new_context()


def new_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
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
