"""What becomes of composes when the role is killed at any moment, or loses its rows or its engine."""

from __future__ import annotations

import base64
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.jobs.running_role import DISTRIBUTION, RunningRole, running_role, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

CONFIG = base64.b64encode(b'{"ignition":{"version":"3.4.0"}}').decode()
REQUEST = {
    "distribution": DISTRIBUTION,
    "image_requests": [
        {
            "architecture": "x86_64",
            "image_type": "vsphere",
            "repositories": [],
            "upload_targets": [{"type": "local", "upload_options": {}}],
        }
    ],
    "customizations": {"ignition": {"embedded": {"config": CONFIG}}},
}
KILLS = 8
STEP_SECONDS = 0.7
"""Between the moments of two kills, counted from the request: a compose takes a few seconds."""


def start(role: RunningRole) -> str:
    answer = role.post("/compose", REQUEST)
    assert answer.status == 201, answer.body
    return answer.json()["id"]


def wait_until_building(role: RunningRole, compose_id: str) -> None:
    def is_building() -> bool:
        status: Any = role.status(compose_id)
        return bool(status["image_status"]["status"] == "building")

    wait_until(is_building, lambda: role.log)


@pytest.mark.timeout(300)  # three starts of the role
def test_lost_rows_or_plans_harm_no_new_compose(tmp_path: Path) -> None:
    with running_role(tmp_path, JOBS_WORKER_SLOTS="0") as role:
        without_row = start(role)
        wait_until_building(role, without_row)
    for path in role.data_dir.glob("jobs.sqlite*"):
        path.unlink()
    with running_role(tmp_path) as role:
        assert role.get(f"/composes/{without_row}").status == 404
        assert role.wait_until_ended(start(role))["status"] == "success"
        without_plan = [start(role) for _ in range(5)][-1]  # one slot: its turn comes much later
        wait_until_building(role, without_plan)
    shutil.rmtree(role.data_dir / "engine")
    with running_role(tmp_path) as role:
        assert role.wait_until_ended(start(role))["status"] == "success"
        lost: Any = role.wait_until_ended(without_plan)
        assert lost["image_status"]["error"]["reason"] == "the job engine has lost this compose"


def images_of(role: RunningRole) -> list[str]:
    """Return what is stored, but for what uploads that were cut off have left: that goes a day later."""
    return [path.name for path in (role.data_dir / "store" / "jobs").rglob("*") if path.is_file()]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_role_that_is_killed_at_any_moment_ends_each_compose_once(tmp_path: Path) -> None:
    composes = []
    for kill in range(KILLS):
        with running_role(tmp_path, JOBS_HEARTBEAT_TIMEOUT="6") as role:
            composes.append(start(role))
            time.sleep(kill * STEP_SECONDS)
            role.process.kill()
            role.process.wait()
    with running_role(tmp_path, JOBS_HEARTBEAT_TIMEOUT="6") as role:
        ends: list[Any] = [role.wait_until_ended(compose_id) for compose_id in composes]
        failures = [end["image_status"]["error"] for end in ends if end["status"] == "failure"]
        # A compose of the first moments loses an attempt with each further kill, and has three.
        assert all(error["id"] == 27 and "step " in error["reason"] for error in failures), failures
        assert len(failures) < KILLS / 2
        images = ["disk.vmdk"] * (KILLS - len(failures))
        wait_until(lambda: images_of(role) == images, lambda: str(images_of(role)))
