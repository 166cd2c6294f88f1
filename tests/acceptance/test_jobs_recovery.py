"""What becomes of composes when the jobs role is killed, or loses its rows or its engine."""

from __future__ import annotations

import shutil
import tempfile
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.jobs_role import running_jobs_role

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

NO_WORKER = {"JOBS_WORKER_SLOTS": "0"}


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_rows_or_plans_that_are_lost_harm_no_new_compose(data_dir: Path) -> None:
    with running_jobs_role(data_dir, NO_WORKER) as role:
        lost = role.start_compose()
        role.wait_for(lost, "building")
    for path in data_dir.glob("jobs.sqlite*"):
        path.unlink()
    with running_jobs_role(data_dir, NO_WORKER) as role:
        assert role.call(f"/composes/{lost}").status == HTTPStatus.NOT_FOUND
        orphan = role.start_compose()
        role.wait_for(orphan, "building")
    shutil.rmtree(data_dir / "engine")
    with running_jobs_role(data_dir) as role:
        assert role.wait_for(role.start_compose())["status"] == "success"
        status = role.wait_for(orphan)
        assert status["status"] == "failure"
        assert status["image_status"]["error"]["reason"] == "the job engine has lost this compose"


def test_compose_survives_the_death_of_the_role(data_dir: Path) -> None:
    limits = {"JOBS_HEARTBEAT_TIMEOUT": "6"}
    with running_jobs_role(data_dir, limits) as role:
        compose_id = role.start_compose()
        role.process.kill()
        role.process.wait()
    with running_jobs_role(data_dir, limits) as role:
        assert role.wait_for(compose_id)["status"] == "success"
        image = role.call(f"/composes/{compose_id}/download")
        assert image.status == HTTPStatus.OK
        assert len(image.body) == int(image.headers["Content-Length"])
