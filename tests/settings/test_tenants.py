from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.jobs.tenants import TenantSettings, read_access_rules
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    from pathlib import Path


def read(**environ: str) -> TenantSettings:
    faults: list[str] = []
    settings = read_group(TenantSettings, environ, faults)
    faults += settings.contradictions(environ)
    if faults:
        raise ConfigurationError("\n".join(faults))
    return settings


def test_tokens_are_not_needed_by_default() -> None:
    settings = read()
    assert not settings.is_enabled
    assert settings.fields == ("rh-org-id", "account_id")


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"JWT_KEYS_URL": "ftp://keys"}, "http:// or https://"),
        ({"JWT_TENANT_FIELDS": "a,,b"}, "names of claims"),
        ({"JWT_KEYS_FILE": "/nowhere"}, "readable file"),
        ({"JWT_AUDIENCE": "images"}, "without JWT_KEYS_URL"),
        ({"JWT_KEYS_TRUSTED_CA_FILE": "/etc/ssl/certs/ca-certificates.crt"}, "without JWT_KEYS_URL"),
    ],
    ids=["scheme", "fields", "file", "alone", "authorities"],
)
def test_faults_name_the_variable(environ: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault) as caught:
        read(**environ)
    assert next(iter(environ)) in caught.value.detail


def test_keys_are_in_one_place(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text('{"keys": []}')
    with pytest.raises(ConfigurationError, match="one must be"):
        read(JWT_KEYS_URL="https://sso.example.com/certs", JWT_KEYS_FILE=str(keys))


def test_access_rules(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text('[{"claim": "a", "pattern": "^1$"}, {"claim": "b", "pattern": "x", "operator": true}]')
    assert [(rule.claim, rule.pattern.pattern, rule.is_operator) for rule in read_access_rules(path)] == [
        ("a", "^1$", False),
        ("b", "x", True),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- claim: a", "must be JSON"),
        ("[]", "at least one entry"),
        ("[1]", "entry 0: must be an object"),
        ('[{"claim": "a", "pattern": "("}]', "entry 0: pattern must be a regular expression"),
        ('[{"claim": "a"}]', "entry 0: pattern must be a string"),
        ('[{"claim": "a", "pattern": "x", "operater": true}]', "unknown member 'operater'"),
        ('[{"claim": "a", "pattern": "x", "operator": "yes"}]', "operator must be true or false"),
        ('[{"claim": "a", "pattern": "x", "max_bytes": 0}]', "max_bytes must be a whole number from 1"),
        ('[{"claim": "a", "pattern": "x", "max_bytes": true}]', "max_bytes must be a whole number from 1"),
        (
            '[{"claim": "a", "pattern": "x", "max_bytes": 5}]',
            "entry 0: max_bytes is that of tenants; .*: rh-org-id, account_id",
        ),
    ],
    ids=[
        *("yaml", "empty", "number", "expression", "missing", "unknown", "operator"),
        *("no bytes", "bytes that are true", "bytes of a claim that names no tenant"),
    ],
)
def test_faults_of_access_rules(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=fault):
        read(JWT_KEYS_URL="https://sso.example.com/certs", JWT_ACL_FILE=str(path))
