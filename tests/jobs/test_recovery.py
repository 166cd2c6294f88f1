"""Composes after kills of the role at any moment, and after losses of its rows or its engine."""

from __future__ import annotations

import secrets
import shutil
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.postgres import running_postgres

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

CONFIG = b'{"ignition":{"version":"3.4.0"}}'
KILLS = 8
STEP_SECONDS = 0.7
"""Between the moments of two kills, counted from the request: a compose takes a few seconds."""


def wait_until_building(role: RunningRole, compose_id: str) -> None:
    def is_building() -> bool:
        status: Any = role.status(compose_id)
        return bool(status["image_status"]["status"] == "building")

    wait_until(is_building, lambda: role.log)


@pytest.mark.soak
def test_lost_rows_or_plans_harm_no_new_compose(tmp_path: Path) -> None:
    with running_role(tmp_path, JOBS_WORKER_SLOTS="0") as role:
        without_plan = role.start("minimal-raw", config=CONFIG)
        wait_until_building(role, without_plan)
    shutil.rmtree(role.data_dir / "engine")
    with running_role(tmp_path) as role:
        made = role.start("minimal-raw", config=CONFIG)
        assert role.wait_until_ended(made)["status"] == "success"
        lost: Any = role.wait_until_ended(without_plan)
        assert lost["image_status"]["error"]["reason"] == "the job engine has lost this compose"
        queue = [role.start("minimal-raw", config=CONFIG) for _ in range(4)]
        without_row = queue[-1]  # one slot: its turn comes much later
        wait_until_building(role, without_row)
    for path in role.data_dir.glob("jobs.sqlite*"):
        path.unlink()
    with running_role(tmp_path) as role:
        assert role.get(f"/composes/{without_row}").status == 404
        made = role.start("minimal-raw", config=CONFIG)
        assert role.wait_until_ended(made)["status"] == "success"


def images_of(role: RunningRole) -> list[str]:
    """Return the stored objects, without unfinished uploads, which upkeep removes a day later."""
    return [path.name for path in (role.data_dir / "store" / "jobs").rglob("*") if path.is_file()]


@pytest.mark.soak
def test_role_that_is_killed_at_any_moment_ends_each_compose_once(tmp_path: Path) -> None:
    composes = []
    for kill in range(KILLS):
        with running_role(tmp_path, JOBS_HEARTBEAT_TIMEOUT="6") as role:
            composes.append(role.start("vsphere", config=CONFIG))
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


@pytest.mark.soak
def test_database_that_is_killed_at_any_moment_costs_no_compose(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(secrets.token_hex(32))
    with running_postgres() as postgres:
        shared = {
            "DATABASE_URL": postgres.create_database(),
            "INSTANCE_SECRET_FILE": str(tmp_path / "secret"),
        }
        with running_role(tmp_path, **shared) as role:
            for kill in range(KILLS):
                compose_id = role.start("vsphere", config=CONFIG)
                time.sleep(kill * STEP_SECONDS)
                postgres.stop("immediate")
                postgres.start()
                wait_until(lambda: role.get("/composes/").status == HTTPStatus.OK, lambda: role.log)
                assert role.wait_until_ended(compose_id)["status"] == "success", role.log
                assert role.get(f"/composes/{compose_id}/download").status == HTTPStatus.OK
