"""Settings of the tenants of the jobs role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.coreos.names import is_web_url
from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def _parse_url(value: str) -> str:
    if not is_web_url(value):
        raise ValueError("must be an http or https URL")
    return value


def _parse_names(value: str) -> tuple[str, ...]:
    return tuple(name for entry in value.split(",") if (name := entry.strip()))


@attrs.frozen(kw_only=True)
class TenantSettings:
    """Jobs: tenants."""

    keys_url: str | None = setting("JWT_KEYS_URL", parse=_parse_url)
    """URL of the keys (JWKS) that sign tokens. The last good ones are used while it does not answer. With
    this or `JWT_KEYS_FILE`, each request needs a token, except on a Unix socket. When neither is set: each
    client belongs to the default tenant, and may do everything."""
    keys_file: Path | None = setting("JWT_KEYS_FILE", parse=parsers.readable_file)
    """File of such keys, which is read again when it has changed."""
    acl_file: Path | None = setting("JWT_ACL_FILE", parse=parsers.readable_file)
    """File of an access list in JSON: `[{"claim": NAME, "pattern": REGULAR_EXPRESSION}, …]`; a token that
    matches one entry is accepted. `"operator": true` in an entry makes its tokens those of the operator,
    whose workers may serve all tenants. When not set: each valid token is accepted, and none is the
    operator's."""
    issuer: str | None = setting("JWT_ISSUER", parse=str)
    """The issuer that tokens must name."""
    audience: str | None = setting("JWT_AUDIENCE", parse=str)
    """The audience that tokens must name."""
    ca_file: Path | None = setting("JWT_KEYS_TRUSTED_CA_FILE", parse=parsers.ca_file)
    """PEM file of certificate authorities to trust for `JWT_KEYS_URL`, beside those of the system."""
    fields: tuple[str, ...] = setting("JWT_TENANT_FIELDS", parse=_parse_names, default="rh-org-id,account_id")
    """Claims that name the tenant, separated by commas; the first that is a string and not empty counts."""

    @property
    def is_enabled(self) -> bool:
        """True if requests need tokens."""
        return bool(self.keys_url or self.keys_file)

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        if self.keys_url and self.keys_file:
            yield "JWT_KEYS_URL and JWT_KEYS_FILE: both are set; one must be, or none"
        for name in ("JWT_ACL_FILE", "JWT_ISSUER", "JWT_AUDIENCE"):
            if environ.get(name) and not (environ.get("JWT_KEYS_URL") or environ.get("JWT_KEYS_FILE")):
                yield f"{name} is set without JWT_KEYS_URL and JWT_KEYS_FILE; requests would need no token"
