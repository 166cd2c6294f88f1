"""The role and its workers: a worker is killed or stopped, or loses the role, during a job."""

from __future__ import annotations

import hashlib
import signal
from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.jobs.worker.workers import HeldToolkit, real_toolkit, running_worker

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.jobs.worker.workers import WorkerProcess

pytestmark = pytest.mark.acceptance

_WITHOUT_WORKER = {"JOBS_WORKER_SLOTS": "0"}
_SHORT_LIMIT = {**_WITHOUT_WORKER, "JOBS_HEARTBEAT_TIMEOUT": "5"}


@pytest.fixture
def held(tmp_path: Path) -> HeldToolkit:
    return HeldToolkit.make(tmp_path / "toolkit")


def worker_of(role: RunningRole, directory: Path, toolkit: Path) -> AbstractContextManager[WorkerProcess]:
    """Run a worker with files in a directory of its own."""
    directory.mkdir()
    return running_worker(f"unix:{role.data_dir}/jobs.sock", directory, toolkit)


def check_image(role: RunningRole, compose_id: str) -> None:
    """Fail the test unless the compose has its one image."""
    status = role.wait_until_ended(compose_id)
    assert status["status"] == "success", status
    image = role.get(f"/composes/{compose_id}/download").body
    made = [path for path in (role.data_dir / "store").rglob("*.raw") if path.is_file()]
    assert [hashlib.sha256(path.read_bytes()).digest() for path in made] == [hashlib.sha256(image).digest()]


@pytest.mark.soak
def test_job_of_a_killed_worker_goes_to_another(held: HeldToolkit, tmp_path: Path) -> None:
    with running_role(tmp_path, **_SHORT_LIMIT) as role:
        compose_id = role.start("minimal-raw")
        with worker_of(role, tmp_path / "first", held.program) as worker:
            wait_until(lambda: bool(held.calls()), lambda: role.log)
            worker.end(signal.SIGKILL)
            held.wait_until_ended()
        with worker_of(role, tmp_path / "second", real_toolkit(tmp_path)):
            check_image(role, compose_id)


@pytest.mark.soak
def test_result_of_a_worker_that_was_stopped_for_too_long_is_refused(
    held: HeldToolkit, tmp_path: Path
) -> None:
    with running_role(tmp_path, **_SHORT_LIMIT) as role:
        compose_id = role.start("minimal-raw")
        with worker_of(role, tmp_path / "first", held.program) as worker:
            wait_until(lambda: bool(held.calls()), lambda: role.log)
            worker.process.send_signal(signal.SIGSTOP)
            held.open()
            with worker_of(role, tmp_path / "second", real_toolkit(tmp_path)):
                check_image(role, compose_id)
                worker.process.send_signal(signal.SIGCONT)
                worker.wait_for_line("job ")
                wait_until(
                    lambda: any(
                        line in worker.log.read_text() for line in ("attempt has ended", "ended early")
                    ),
                    worker.log.read_text,
                )
        check_image(role, compose_id)


@pytest.mark.soak
def test_job_survives_a_kill_of_the_service(held: HeldToolkit, tmp_path: Path) -> None:
    with running_role(tmp_path, **_WITHOUT_WORKER) as role:
        compose_id = role.start("minimal-raw")
        with worker_of(role, tmp_path / "worker", held.program):
            wait_until(lambda: bool(held.calls()), lambda: role.log)
            role.process.send_signal(signal.SIGKILL)
            role.process.wait()
            held.open()
            with running_role(tmp_path, **_WITHOUT_WORKER) as again:
                check_image(again, compose_id)
    assert [call[1] for call in held.calls()] == ["convert"]
