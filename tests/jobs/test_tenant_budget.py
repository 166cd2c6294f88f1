"""A role whose tenants have little room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import API, RunningRole, compose_request
from tests.jobs.tenant_clients import ask, finish, running_with_tenants, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.service import Answer

pytestmark = pytest.mark.acceptance

GIB = 1024**3


def order(role: RunningRole, tenant: str, size: int | None) -> Answer:
    return ask(role, f"{API}/compose", tenant, compose_request("minimal-raw", size=size))


def reason(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body).get("details", "").partition(":")[0]


def test_order_beyond_the_budget_is_refused_and_delays_no_other_tenant(tmp_path: Path) -> None:
    bounds = {"JOBS_MAX_BYTES": str(GIB), "JOBS_MAX_DISK_SIZE": str(GIB)}
    with running_with_tenants(tmp_path, **bounds) as role:
        too_large = order(role, "1", GIB + 512)
        assert (too_large.status, json.loads(too_large.body)["id"]) == (400, "42")
        assert reason(order(role, "1", GIB)) == (507, "JOBS_MAX_BYTES")
        first = start(role, "1", "minimal-raw")
        finish(role, "2", start(role, "2", "minimal-raw"))
        finish(role, "1", first)
        assert reason(order(role, "1", GIB // 2)) == (201, "")
