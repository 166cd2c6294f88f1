"""Settings of the authentication of the jobs role's APIs, and of its tenants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.hosts import host_fault, is_web_url
from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MEMBERS = {"claim", "pattern", "operator", "max_bytes"}


@attrs.frozen
class AccessRule:
    """An entry of the access list.

    Args:
        claim: whose value, if it is a string, is compared.
        pattern: matches the whole of the values that the entry admits, which are printable.
        is_operator: the tokens that it admits are those of operators.
        max_bytes: of a tenant whose name has the pattern, in the place of ``JOBS_MAX_BYTES``; None: that.
    """

    claim: str
    pattern: re.Pattern[str]
    is_operator: bool = False
    max_bytes: int | None = None


def read_access_rules(path: Path) -> tuple[AccessRule, ...]:
    """Return the entries of an access list.

    Raises:
        ValueError: the file cannot be read; or one argument per fault, each naming entry and member.
    """
    entries = parsers.json_entries(_read_text(path), _faults_of_rule)
    return tuple(
        AccessRule(
            entry["claim"],
            re.compile(entry["pattern"]),
            entry.get("operator", False),
            entry.get("max_bytes"),
        )
        for entry in entries
    )


def read_key_documents(path: Path) -> list[object]:
    """Return the keys of a file that is a JSON Web Key Set (RFC 7517 section 5), unchecked.

    Raises:
        ValueError: the file cannot be read, or is something else.
    """
    return key_documents(_read_text(path))


def key_documents(text: str | bytes) -> list[object]:
    """Return the keys of a JSON Web Key Set, unchecked; raise ValueError if the text is something else."""
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"keys": list(keys)}:
            return keys
    raise ValueError('must be a JSON Web Key Set, such as {"keys": [{"kty": "RSA", …}]}')


def _read_text(path: Path) -> str:
    return parsers.file_content(str(path.absolute()))


def _faults_of_rule(entry: object) -> Iterable[str]:
    if not isinstance(entry, dict):
        yield 'must be an object, such as {"claim": "rh-org-id", "pattern": "^42$"}'
        return
    if unknown := sorted(set(entry) - _MEMBERS):
        yield f"has the unknown member {unknown[0]!r}; the members are {', '.join(sorted(_MEMBERS))}"
    for name in ("claim", "pattern"):
        if not isinstance(entry.get(name), str) or not entry[name]:
            yield f"{name} must be a string that is not empty"
    if not isinstance(entry.get("operator", False), bool):
        yield "operator must be true or false, or absent"
    max_bytes = entry.get("max_bytes", 1)
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
        yield "max_bytes must be a whole number from 1, or absent"
    try:
        re.compile(str(entry.get("pattern")))
    except (re.error, RecursionError) as error:
        yield f"pattern must be a regular expression: {error}"


def _parse_access_file(value: str) -> Path:
    read_access_rules(Path(value))
    return Path(value)


def _parse_keys_file(value: str) -> Path:
    read_key_documents(Path(value))
    return Path(value)


def _parse_keys_url(value: str) -> str:
    if not is_web_url(value):
        form = "must be an http:// or https:// URL, escaped, without fragment and user name"
        raise ValueError(host_fault(value) or form)
    return value


def _parse_fields(value: str) -> tuple[str, ...]:
    fields = tuple(field.strip() for field in value.split(","))
    if not all(fields):
        raise ValueError("must be names of claims, separated by commas")
    return fields


@attrs.frozen(kw_only=True)
class TenantSettings:
    """Jobs: tenants."""

    keys_url: str | None = setting("JWT_KEYS_URL", parse=_parse_keys_url)
    """URL of the JSON Web Key Set whose keys sign the tokens of clients and workers. It is fetched every
    minute, and once more for a key that is not in it, five times at once at most. While the URL is
    unavailable, the last valid set stays in use. RSA, EC and Ed25519 keys are used, each with the
    algorithms of its type alone; symmetric keys are not. With it or `JWT_KEYS_FILE`, requests over TCP need a
    token; without both, every request is the operator's, and TCP listeners are on loopback only."""
    keys_file: Path | None = setting("JWT_KEYS_FILE", parse=_parse_keys_file)
    """File of such a set, in the place of `JWT_KEYS_URL`; re-read when it has changed."""
    ca_file: Path | None = setting("JWT_KEYS_TRUSTED_CA_FILE", parse=parsers.ca_file)
    """PEM file of certificate authorities to trust for `JWT_KEYS_URL`, beside those of the system."""
    acl_file: Path | None = setting("JWT_ACL_FILE", parse=_parse_access_file)
    """File of the access list, re-read when it has changed: a JSON list of objects with `claim`, the name of
    a claim, and `pattern`, a regular expression. A token is admitted if one of them matches the whole value
    of its claim, which must be a string; `.*` stands for any part. An entry with `"operator": true` admits
    operators: their workers may ask for the jobs of all tenants, with `--tenant ANY`. `"max_bytes": N` in an
    entry is the `JOBS_MAX_BYTES` of the tenants whose names it matches; its claim must be one of
    `JWT_TENANT_FIELDS`, and the first such entry counts. When not set, every valid token is admitted, and
    none is an operator's."""
    issuer: str | None = setting("JWT_ISSUER", parse=str)
    """The `iss` that tokens must have. When not set, any."""
    audience: str | None = setting("JWT_AUDIENCE", parse=str)
    """The `aud` that tokens must have, alone or among others. When not set, any."""
    fields: tuple[str, ...] = setting(
        "JWT_TENANT_FIELDS", parse=_parse_fields, default="rh-org-id,account_id"
    )
    """Names of claims, separated by commas. The first that is a string, and not empty, names the tenant; a
    number is passed over. A token without any is refused, except an operator's."""

    @property
    def is_enabled(self) -> bool:
        """True if requests over TCP need a token."""
        return self.keys_url is not None or self.keys_file is not None

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        if environ.get("JWT_KEYS_URL") and environ.get("JWT_KEYS_FILE"):
            yield "JWT_KEYS_URL and JWT_KEYS_FILE are set; one must be"
        if environ.get("JWT_KEYS_TRUSTED_CA_FILE") and not environ.get("JWT_KEYS_URL"):
            yield "JWT_KEYS_TRUSTED_CA_FILE is set without JWT_KEYS_URL"
        if self.acl_file is not None:
            yield from self._rules_without_a_tenant(self.acl_file)
        if environ.get("JWT_KEYS_URL") or environ.get("JWT_KEYS_FILE"):
            return
        for name in ("JWT_ACL_FILE", "JWT_ISSUER", "JWT_AUDIENCE"):
            if environ.get(name):
                yield f"{name} is set without JWT_KEYS_URL or JWT_KEYS_FILE; it would have no effect"

    def _rules_without_a_tenant(self, acl_file: Path) -> Iterator[str]:
        for number, rule in enumerate(read_access_rules(acl_file)):
            if rule.max_bytes is not None and rule.claim not in self.fields:
                yield (
                    f"JWT_ACL_FILE: entry {number}: max_bytes is that of tenants; the claim must be one of"
                    f" JWT_TENANT_FIELDS: {', '.join(self.fields)}"
                )
