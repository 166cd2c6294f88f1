"""Two tenants, with tokens of their own, on one role whose worker serves all."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.service import fetch
from tests.jobs.running_role import API, RunningRole
from tests.jobs.tenant_clients import ask, finish, running_with_tenants, start, token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

WORKER_API = "/api/image-builder-worker/v1"
QUEUED = 5
"""Composes of the first tenant, while the second one starts one."""


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    with running_with_tenants(tmp_path_factory.mktemp("tenants")) as running:
        yield running


def test_one_tenant_neither_delays_nor_sees_another(role: RunningRole) -> None:
    first = [start(role, "1", "minimal-raw") for _ in range(QUEUED)]
    second = finish(role, "2", start(role, "2", "minimal-raw"))
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
    for name in ("metadata", "logs", "manifests", "sboms", "provenance", "download"):
        assert ask(role, f"{API}/composes/{first[0]}/{name}", "2").status == 404, name
    fields = {"Authorization": f"Bearer {token('2')}"}
    assert fetch(f"{role.url}{API}/composes/{first[0]}", "DELETE", headers=fields).status == 404
    assert json.loads(role.compose("list", "--json")) == []  # of the default tenant, by the socket

    page = fetch(f"{role.admin_url}/metrics").body.decode()
    assert (
        'image_builder_worker_total_jobs{arch="x86_64",status="2xx",tenant="org-1",type="customize"}' in page
    )


def test_document_is_for_everyone(role: RunningRole) -> None:
    assert fetch(f"{role.url}{API}/openapi").status == 200


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
