"""A role whose object store is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import RunningRole, needs_disk_programs, wait_until
from tests.jobs.tenant_clients import finish, running_with_tenants, start, status_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance


def test_full_store_ends_jobs_and_delays_no_other_tenant(tmp_path: Path) -> None:
    needs_disk_programs()
    tenants = ("1", "2")
    with running_with_tenants(tmp_path, STORE_RESERVE_BYTES=str(10**15)) as role:
        disks = [start(role, tenant, "minimal-raw") for tenant in tenants]
        iso = start(role, "2", "live-installer")
        finish(role, "2", iso)
        for tenant, compose_id in zip(tenants, disks, strict=True):
            reason = wait_for_failure(role, tenant, compose_id)
            assert "507: There is no room for the artifact" in reason
            assert "STORE_RESERVE_BYTES" in reason


def wait_for_failure(role: RunningRole, tenant: str, compose_id: str) -> str:
    """Wait until a compose has failed, and return the reason."""
    wait_until(lambda: status_of(role, tenant, compose_id)["status"] != "pending", lambda: role.log)
    return str(status_of(role, tenant, compose_id)["image_status"]["error"]["reason"])
