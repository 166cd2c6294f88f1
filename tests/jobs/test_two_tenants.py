"""Two tenants, with tokens of their own, on one role whose worker serves all."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.service import fetch
from tests.jobs.running_role import API, DISTRIBUTION, RunningRole, running_role, wait_until
from tests.jobs.tenants.tokens import RSA, key_set

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer

pytestmark = pytest.mark.acceptance

WORKER_API = "/api/image-builder-worker/v1"
RULES = [
    {"claim": "rh-org-id", "pattern": "^[0-9]+$"},
    {"claim": "sub", "pattern": "^operator$", "operator": True},
]
QUEUED = 5
"""Composes of the first tenant, while the second one starts one."""


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    directory = tmp_path_factory.mktemp("tenants")
    keys, rules = directory / "keys.json", directory / "acl.json"
    keys.write_bytes(key_set(RSA))
    rules.write_text(json.dumps(RULES))
    with running_role(directory, JWT_KEYS_FILE=str(keys), JWT_ACL_FILE=str(rules)) as running:
        yield running


def token(tenant: str, **claims: object) -> str:
    return RSA.token(header=None, **{"rh-org-id": tenant, **claims})


def ask(role: RunningRole, path: str, tenant: str, document: object = None, **claims: object) -> Answer:
    """Send a request of a tenant, a POST if there is a document."""
    fields = {"Authorization": f"Bearer {token(tenant, **claims)}"}
    if document is None:
        return fetch(f"{role.url}{path}", headers=fields)
    fields["Content-Type"] = "application/json"
    return fetch(f"{role.url}{path}", "POST", headers=fields, body=json.dumps(document).encode())


def start(role: RunningRole, tenant: str) -> str:
    """Start a compose that takes one job; return its id."""
    config = b64encode(b'{"ignition": {"version": "3.3.0"}}').decode()
    image = {
        "architecture": "x86_64",
        "image_type": "minimal-raw",
        "repositories": [],
        "upload_targets": [{"type": "local", "upload_options": {}}],
    }
    customizations = {"ignition": {"embedded": {"config": config}}}
    document = {"distribution": DISTRIBUTION, "image_requests": [image], "customizations": customizations}
    answer = ask(role, f"{API}/compose", tenant, document)
    assert answer.status == 201, answer.body
    return str(json.loads(answer.body)["id"])


def status(role: RunningRole, tenant: str, compose_id: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ask(role, f"{API}/composes/{compose_id}", tenant).body)
    return document


def finish(role: RunningRole, tenant: str, compose_id: str) -> dict[str, Any]:
    """Return the status of a compose that has succeeded."""
    wait_until(lambda: status(role, tenant, compose_id)["status"] != "pending", lambda: role.log)
    found = status(role, tenant, compose_id)
    assert found["status"] == "success", found
    return found


def test_one_tenant_does_not_hold_up_or_see_another(role: RunningRole) -> None:
    first = [start(role, "1") for _ in range(QUEUED)]
    second = finish(role, "2", start(role, "2"))
    others = [finish(role, "1", compose_id) for compose_id in first]
    begun, ended = (datetime.fromisoformat(second[name]) for name in ("created_at", "finished_at"))
    meanwhile = [each for each in others if begun < datetime.fromisoformat(each["finished_at"]) < ended]
    assert len(meanwhile) <= 2  # that which ran, and one that had been handed out already

    assert [each["id"] for each in json.loads(ask(role, f"{API}/composes/", "2").body)] == [second["id"]]
    foreign = ask(role, f"{API}/composes/{first[0]}", "2")
    guessed = ask(role, f"{API}/composes/{'0' * 8}{first[0][8:]}", "2")
    assert (foreign.status, guessed.status) == (404, 404)
    bodies = [json.loads(answer.body) | {"operation_id": ""} for answer in (foreign, guessed)]
    assert bodies[0] == bodies[1]
    assert ask(role, f"{API}/composes/{first[0]}/download", "2").status == 404
    assert json.loads(role.compose("list", "--json")) == []  # of the default tenant, by the socket

    page = fetch(f"{role.admin_url}/metrics").body.decode()
    assert (
        'image_builder_worker_total_jobs{arch="x86_64",status="2xx",tenant="org-1",type="customize"}' in page
    )


@pytest.mark.parametrize("path", [f"{API}/composes/", f"{WORKER_API}/jobs"])
def test_requests_need_a_token(role: RunningRole, path: str) -> None:
    assert fetch(f"{role.url}{path}").status == 401
    assert fetch(f"{role.url}{path}", headers={"Authorization": "Bearer x.y.z"}).status == 401


def test_only_operators_may_ask_for_all_tenants(role: RunningRole, tmp_path: Path) -> None:
    poll = {"types": ["upload"], "arch": "s390x", "tenant": "ANY"}
    assert ask(role, f"{WORKER_API}/jobs", "1", poll).status == 403
    registration = {"arch": "x86_64"}
    assert ask(role, f"{WORKER_API}/workers", "1", registration, sub="operator").status == 201
    token_file = tmp_path / "token"
    token_file.write_text(token("2"))
    listed = role.compose("list", "--json", "--server", role.url, "--token-file", token_file)
    assert {each["id"] for each in json.loads(listed)} == {
        each["id"] for each in json.loads(ask(role, f"{API}/composes/", "2").body)
    }


def test_no_token_is_in_the_log(role: RunningRole) -> None:
    assert "eyJ" not in role.log
