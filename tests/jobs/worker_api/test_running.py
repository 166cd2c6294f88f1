"""The worker API of a process with a real engine: aborted polls, zombies, cancellation and crashes."""

from __future__ import annotations

import json
import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.service import fetch
from tests.jobs.running_role import API, RunningRole, running_role
from tests.jobs.worker_api.worker_double import CONTENT, TakenJob, abort_poll, poll, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer

pytestmark = pytest.mark.acceptance

SETTINGS = {"JOBS_WORKER_SLOTS": "0", "JOBS_POLL_TIMEOUT": "3", "JOBS_HEARTBEAT_TIMEOUT": "10"}


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    with running_role(tmp_path_factory.mktemp("jobs"), **SETTINGS) as running:
        yield running


def number_of(answer: Answer) -> tuple[int, str]:
    """Return the status and the id of an error."""
    return answer.status, json.loads(answer.body)["id"]


@pytest.mark.parametrize("number", [30, pytest.param(1000, marks=pytest.mark.soak)])
def test_aborted_polls_lose_no_job(role: RunningRole, number: int) -> None:
    chance = random.Random(3)  # noqa: S311 - moments, not secrets
    composes, done = set(), set()

    def do(job: TakenJob | None) -> None:
        if job is not None:
            job.do()
            done.add(job.compose_id)

    for index in range(number):
        if index % 10 == 0:
            composes.add(role.start("minimal-raw"))
        do(abort_poll(role, chance.random() * 0.03 + 0.001))
    while done != composes:
        do(take(role))
    for compose_id in composes:
        assert role.wait_until_ended(compose_id)["status"] == "success"
        assert role.get(f"/composes/{compose_id}/download").body == CONTENT


def test_job_of_a_silent_worker_goes_to_another_and_its_late_result_changes_nothing(
    role: RunningRole,
) -> None:
    compose_id = role.start("minimal-raw")
    zombie = take(role)
    assert zombie.upload().status == 200
    job = take(role)
    assert (job.compose_id, job.document["id"]) == (compose_id, zombie.document["id"])
    assert job.document["location"] != zombie.document["location"]
    for late in (zombie.beat(), zombie.upload(), zombie.finish()):
        assert number_of(late) == (404, "5")
    job.do()
    assert role.wait_until_ended(compose_id)["status"] == "success"
    assert number_of(job.finish()) == (404, "5")


@pytest.mark.soak
def test_three_silent_workers_fail_the_compose(role: RunningRole) -> None:
    compose_id = role.start("minimal-raw")
    for _ in range(3):
        assert take(role).compose_id == compose_id
    error = role.wait_until_ended(compose_id)["image_status"]["error"]  # type: ignore[index]
    assert error["id"] == 27
    assert "customize" in error["reason"]


@pytest.mark.parametrize("is_running", [False, True], ids=["queued", "running"])
def test_cancelled_compose_is_a_failure_and_its_worker_stops(role: RunningRole, *, is_running: bool) -> None:
    compose_id = role.start("minimal-raw")
    job = take(role) if is_running else None
    assert fetch(f"{role.url}{API}/composes/{compose_id}/cancel", "POST").status == 200
    assert role.wait_until_ended(compose_id)["status"] == "failure"
    if job is None:
        assert poll(role) is None
    else:
        assert json.loads(job.beat().body)["canceled"]
        assert number_of(job.finish()) == (400, "6")


@pytest.mark.soak
def test_service_that_is_killed_between_steps_loses_nothing(tmp_path: Path) -> None:
    """Each step is done by another process of the role, whose predecessor was killed after the one before."""
    steps: list[Callable[[RunningRole], object]] = []
    compose_ids: list[str] = []
    jobs: list[TakenJob] = []

    def here(role: RunningRole) -> TakenJob:
        return TakenJob(role, jobs[-1].document)

    for _ in ("customize", "convert"):
        steps += [
            lambda role: jobs.append(take(role)),
            lambda role: here(role).upload(),
            lambda role: here(role).finish(),
        ]
    settings = SETTINGS | {"JOBS_HEARTBEAT_TIMEOUT": "60"}
    for step in [lambda role: compose_ids.append(role.start("minimal-raw", size=1024**3)), *steps]:
        with running_role(tmp_path, **settings) as role:
            step(role)
            role.process.send_signal(signal.SIGKILL)
            role.process.wait()
    with running_role(tmp_path, **settings) as role:
        ended = role.wait_until_ended(compose_ids[0])
        assert ended["status"] == "success", ended
        assert role.get(f"/composes/{compose_ids[0]}/download").body == CONTENT
