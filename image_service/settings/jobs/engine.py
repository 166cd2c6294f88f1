"""Settings of the job engine, Temporal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from image_service.settings.parsers import Address

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _parse_address(value: str) -> Address:
    address = parsers.address(value)
    if address.port is None:
        raise ValueError("must be HOST:PORT, such as temporal:7233")
    return address


def _parse_namespace(value: str) -> str:
    if not _NAMESPACE.fullmatch(value):
        raise ValueError("must be at most 128 letters, digits and . _ -, the first a letter or digit")
    return value


@attrs.frozen(kw_only=True)
class EngineSettings:
    """Jobs: the engine, Temporal."""

    address: Address | None = setting("TEMPORAL_ADDRESS", parse=_parse_address)
    """`HOST:PORT` of a Temporal frontend (server 1.24 or later). When not set: the role runs Temporal's
    development server as a child, with its SQLite file in `DATA_DIR`."""
    namespace: str = setting("TEMPORAL_NAMESPACE", parse=_parse_namespace, default="image-service")
    """Temporal's namespace, created with a retention of 14 days if it is not there."""
    tls: bool = setting("TEMPORAL_TLS", parse=parsers.flag, default="false")
    """`true`: connect to `TEMPORAL_ADDRESS` by TLS. Implied by the files below."""
    ca_file: Path | None = setting("TEMPORAL_TLS_CA_FILE", parse=parsers.ca_file)
    """PEM file of certificate authorities to trust for `TEMPORAL_ADDRESS`. When not set: those of the
    system."""
    certificate_file: Path | None = setting("TEMPORAL_TLS_CERT_FILE", parse=parsers.readable_file)
    """PEM file of this service's certificate for `TEMPORAL_ADDRESS`; set together with its key."""
    key_file: Path | None = setting("TEMPORAL_TLS_KEY_FILE", parse=parsers.readable_file)
    """PEM file of the key of that certificate, without passphrase."""

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        if bool(environ.get("TEMPORAL_TLS_CERT_FILE")) != bool(environ.get("TEMPORAL_TLS_KEY_FILE")):
            yield "TEMPORAL_TLS_CERT_FILE and TEMPORAL_TLS_KEY_FILE: one is set; both must be, or none"
        names = ("NAMESPACE", "TLS", "TLS_CA_FILE", "TLS_CERT_FILE", "TLS_KEY_FILE")
        needless = [f"TEMPORAL_{name}" for name in names if environ.get(f"TEMPORAL_{name}")]
        if needless and not environ.get("TEMPORAL_ADDRESS"):
            yield f"{needless[0]} is set without TEMPORAL_ADDRESS"
