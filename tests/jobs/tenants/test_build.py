from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from twisted.internet import reactor  # noqa: TID251 - that of the test

from image_service.common.concurrency.process_parts import PartsStack
from image_service.common.files import reloaded
from image_service.core.errors import ConfigurationError, Forbidden
from image_service.jobs.principal import Principal
from image_service.jobs.tenants.authenticator import OpenAuthenticator
from image_service.jobs.tenants.build_tenants import build_authenticator, build_budgets
from image_service.settings.jobs.tenants import TenantSettings
from image_service.settings.proxies import NO_PROXIES
from image_service.settings.variables import read_group
from tests.jobs.tenants.tokens import EC, RSA, key_set
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

    from image_service.jobs.tenants.authenticator import Authenticator


@async_fixture
async def parts() -> AsyncIterator[PartsStack]:
    twisted_reactor: Any = reactor
    async with PartsStack(twisted_reactor) as stack:
        yield stack


def build(parts: PartsStack, **environ: str) -> Authenticator:
    faults: list[str] = []
    settings = read_group(TenantSettings, environ, faults)
    assert faults == []
    return build_authenticator(parts, settings, NO_PROXIES, "token of the worker")


@ensure_deferred
async def test_without_keys_there_are_no_tokens(parts: PartsStack) -> None:
    assert isinstance(build(parts), OpenAuthenticator)


@ensure_deferred
async def test_keys_are_fetched(parts: PartsStack) -> None:
    with running() as origin:
        subject = build(parts, JWT_KEYS_URL=origin.serve("/keys", Reply(key_set(RSA))))
        found = await subject.authenticate(f"Bearer {RSA.token()}", is_local=False)
    assert found == Principal("org-42")


@ensure_deferred
async def test_files_are_read_again(
    parts: PartsStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloaded, "CHECK_SECONDS", 0)
    keys, rules = tmp_path / "keys.json", tmp_path / "acl.json"
    keys.write_bytes(key_set(RSA))
    rules.write_text('[{"claim": "rh-org-id", "pattern": "^42$"}]')
    subject = build(parts, JWT_KEYS_FILE=str(keys), JWT_ACL_FILE=str(rules))
    await subject.authenticate(f"Bearer {RSA.token()}", is_local=False)
    replace(keys, key_set(EC))
    await subject.authenticate(f"Bearer {EC.token()}", is_local=False)
    replace(rules, b'[{"claim": "rh-org-id", "pattern": "^43$"}]')
    with pytest.raises(Forbidden):
        await subject.authenticate(f"Bearer {EC.token()}", is_local=False)


def test_budgets_are_those_of_the_access_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloaded, "CHECK_SECONDS", 0)
    keys, rules = tmp_path / "keys.json", tmp_path / "acl.json"
    keys.write_bytes(key_set(RSA))
    rules.write_text(
        '[{"claim": "rh-org-id", "pattern": "4."}, {"claim": "rh-org-id", "pattern": "4.*", "max_bytes": 7},'
        ' {"claim": "account_id", "pattern": "^42$", "max_bytes": 8}]'
    )
    settings = read_group(TenantSettings, {"JWT_KEYS_FILE": str(keys), "JWT_ACL_FILE": str(rules)}, [])
    max_bytes_of = build_budgets(settings)
    assert [max_bytes_of(tenant) for tenant in ("org-42", "org-4", "org-5", "")] == [7, 7, None, None]
    replace(rules, b'[{"claim": "rh-org-id", "pattern": "^$", "max_bytes": 9}]')
    assert [max_bytes_of(tenant) for tenant in ("org-42", "")] == [None, 9]


def replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)  # noqa: PTH105 - as it is done by Kubernetes


@ensure_deferred
async def test_file_without_usable_keys_is_a_fault(parts: PartsStack, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}))
    with pytest.raises(ConfigurationError, match="RSA, EC"):
        build(parts, JWT_KEYS_FILE=str(keys))
