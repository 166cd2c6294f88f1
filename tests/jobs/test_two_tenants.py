"""Two tenants, with tokens of their own, on one role, and a worker that serves all."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.service import fetch
from tests.jobs.running_role import API, RunningRole, wait_until
from tests.jobs.tenant_clients import ask, finish, running_with_tenants, start, token
from tests.jobs.worker.workers import real_toolkit, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

WORKER_API = "/api/image-builder-worker/v1"
QUEUED = 2
"""Composes of the first tenant, while the second one starts one."""


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    with running_with_tenants(tmp_path_factory.mktemp("tenants"), JOBS_WORKER_SLOTS="0") as running:
        yield running


def wait_until_queued(role: RunningRole, tenant: str, compose_id: str) -> None:
    path = f"{API}/composes/{compose_id}/logs"
    wait_until(lambda: b'"queued"' in ask(role, path, tenant).body, lambda: role.log)


def test_one_tenant_neither_delays_nor_sees_another(role: RunningRole, tmp_path: Path) -> None:
    first = [start(role, "1", "minimal-raw") for _ in range(QUEUED)]
    for compose_id in first:
        wait_until_queued(role, "1", compose_id)
    last = start(role, "2", "minimal-raw")
    wait_until_queued(role, "2", last)
    operator = token("1", sub="operator")
    with running_worker(role.url, tmp_path, real_toolkit(tmp_path), "--tenant=ANY", token=operator):
        second = finish(role, "2", last)
        for compose_id in first:
            finish(role, "1", compose_id)
    served = re.findall(r" of compose (\S+), attempt 1", role.log)
    assert served.index(last) <= 1  # after one job of the other tenant, at most

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
