"""A role whose object store is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_replicas import running_replicas
from tests.jobs.running_role import RunningRole, needs_disk_programs, wait_until
from tests.jobs.tenant_clients import finish, running_with_tenants, start, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance


@pytest.fixture(params=["sqlite", "postgresql"])
def roles(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RunningRole, RunningRole]]:
    """The role that has orders, and the one that is asked: one, or two replicas."""
    needs_disk_programs()
    full = {"STORE_URL": str(tmp_path / "store"), "STORE_RESERVE_BYTES": str(10**15)}
    if request.param == "sqlite":
        with running_with_tenants(tmp_path, **full) as role:
            yield role, role
    else:
        postgres = request.getfixturevalue("postgres")
        with running_replicas(tmp_path, postgres, JOBS_WORKER_SLOTS="1", **full) as site:
            yield site.second, site.first


def test_full_store_ends_jobs_and_delays_no_other_tenant(roles: tuple[RunningRole, RunningRole]) -> None:
    ordered, asked = roles
    tenants = ("1", "2")
    disks = [start(ordered, tenant, "minimal-raw") for tenant in tenants]
    iso = start(ordered, "2", "live-installer")
    finish(asked, "2", iso)
    for tenant, compose_id in zip(tenants, disks, strict=True):
        reason = wait_for_failure(asked, tenant, compose_id)
        assert "507: There is no room for the artifact" in reason
        assert "STORE_RESERVE_BYTES" in reason


def wait_for_failure(role: RunningRole, tenant: str, compose_id: str) -> str:
    """Wait until a compose has failed, and return the reason."""
    wait_until(lambda: status_of(role, tenant, compose_id)["status"] != "pending", lambda: role.log)
    return str(status_of(role, tenant, compose_id)["image_status"]["error"]["reason"])
