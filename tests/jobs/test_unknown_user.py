"""The role as a user for whom /etc/passwd has no line, as of systemd's DynamicUser and in pods."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import JOBS, needs_disk_programs, running_role

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

UNKNOWN_USER = ("unshare", "--user", "--map-user=54321")


def test_role_composes_as_a_user_that_has_no_name(tmp_path: Path) -> None:
    if subprocess.run([*UNKNOWN_USER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare --user does not work here")
    needs_disk_programs()
    with running_role(tmp_path, [*UNKNOWN_USER, *JOBS]) as role:
        assert "USER" not in role.environment
        compose_id = role.start("guest-image")
        assert role.wait_until_ended(compose_id)["status"] == "success", role.log
