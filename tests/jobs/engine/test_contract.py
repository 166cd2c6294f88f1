"""The contract of `Engine`, with a real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service import __version__
from image_service.core.errors import NotFound, StoreFailed, Unavailable
from image_service.jobs.engine import connection
from image_service.jobs.engine.engine import PlanState
from image_service.jobs.engine.run_plan import RunPlan
from image_service.jobs.model import JobError, JobType, Step
from tests.jobs.engine.driver import CONVERT, CUSTOMIZE, IMPORT, UPLOAD, Driver

if TYPE_CHECKING:
    from tests.jobs.engine.servers import EngineServer

pytestmark = pytest.mark.acceptance

FETCH = Step("fetch", "fetch-base")
CUSTOMIZED = Step("customize", JobType.CUSTOMIZE, after=("fetch",))
CONVERTED = Step("convert", JobType.CONVERT, after=("customize",))
LONE = Step("customize", JobType.CUSTOMIZE)
UPLOADS = (Step("upload", JobType.UPLOAD), Step("upload-2", JobType.UPLOAD))
FULL = JobError(11, "the bucket is full")
REFUSED = JobError(4, "the image is unsafe")


def test_plan_runs_its_steps_in_order(driver: Driver) -> None:
    compose = driver.begin(FETCH, CUSTOMIZED, CONVERTED)
    task = driver.take(CUSTOMIZE)
    assert (task.compose_id, task.attempt) == (compose.id, 1)
    assert driver.call(driver.engine.heartbeat(task.token))
    assert driver.call(driver.engine.find_plan(compose.id)) is PlanState.RUNNING
    assert driver.call(driver.engine.complete(task.token))
    driver.finish(CONVERT)
    assert driver.end(compose) == (None, False)
    assert driver.actions.calls[compose.id] == [
        ("begin",),
        ("act", "fetch"),
        ("queue_job", "customize", 1),
        ("finish_job", "customize"),
        ("queue_job", "convert", 1),
        ("finish_job", "convert"),
        ("finish",),
    ]
    assert driver.actions.jobs["customize"] is None
    driver.wait_until(lambda: driver.call(driver.engine.find_plan(compose.id)) is PlanState.ENDED)


def test_plans_that_are_not_in_memory_any_more_go_on(
    engine_server: EngineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MAX_CACHED_PLANS", 2)
    carry_out, runs = RunPlan._run_steps, []

    async def counted(plan: RunPlan) -> JobError | None:
        runs.append(plan)
        return await carry_out(plan)

    monkeypatch.setattr(RunPlan, "_run_steps", counted)
    with Driver(engine_server.address).running() as driver:
        composes = [driver.begin(FETCH, CUSTOMIZED, CONVERTED) for _ in range(5)]
        for queue in (CUSTOMIZE, CONVERT):
            for _ in composes:
                driver.finish(queue)
        assert [driver.end(compose) for compose in composes] == [(None, False)] * 5
    assert len(runs) > len(composes)


def test_engine_is_told_the_version_that_carries_out_a_plan(driver: Driver) -> None:
    compose = driver.begin(FETCH)
    assert driver.end(compose) == (None, False)
    plan = driver.connection.client.get_workflow_handle(compose.id)
    done = [
        event.workflow_task_completed_event_attributes
        for event in driver.loop.run_until_complete(plan.fetch_history()).events
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    assert {each.worker_version.build_id for each in done} == {__version__}


def test_plan_starts_once(driver: Driver) -> None:
    compose = driver.begin(LONE)
    assert not driver.call(driver.engine.start_plan(compose))
    driver.finish(CUSTOMIZE)
    driver.end(compose)
    assert not driver.call(driver.engine.start_plan(compose))


def test_unknown_plan_and_token(driver: Driver) -> None:
    assert driver.call(driver.engine.find_plan("none")) is PlanState.UNKNOWN
    driver.call(driver.engine.cancel_plan("none"))
    assert driver.call(driver.engine.poll(CONVERT, "worker", 0)) is None


def test_failed_job_ends_the_plan(driver: Driver) -> None:
    compose = driver.begin(LONE, CONVERTED)
    driver.finish(CUSTOMIZE, FULL)
    assert driver.end(compose) == (FULL, False)
    assert driver.actions.jobs["customize"] == FULL
    assert ("queue_job", "convert", 1) not in driver.actions.calls[compose.id]


def test_failed_step_of_this_service_ends_the_plan(driver: Driver) -> None:
    driver.actions.step_error = FULL
    compose = driver.begin(FETCH, CUSTOMIZED)
    assert driver.end(compose) == (FULL, False)


def test_step_is_repeated_while_the_database_is_unavailable(driver: Driver) -> None:
    driver.actions.errors = [StoreFailed("away"), StoreFailed("away")]
    compose = driver.begin(FETCH)
    assert driver.end(compose) == (None, False)
    assert driver.actions.calls[compose.id] == [("begin",)] * 3 + [("act", "fetch"), ("finish",)]


def test_step_waits_as_long_as_its_error_says_and_is_cancelled_meanwhile(driver: Driver) -> None:
    driver.actions.errors = [Unavailable("the upload is awaited", retry_after_seconds=3600)]
    compose = driver.begin(FETCH)
    driver.wait_until(lambda: bool(driver.actions.calls[compose.id]))
    driver.wait(2)  # the engine's own first delay is 1 s
    assert driver.actions.calls[compose.id] == [("begin",)]
    driver.call(driver.engine.cancel_plan(compose.id))
    assert driver.end(compose) == (None, True)


def test_deleted_compose_ends_its_plan(driver: Driver) -> None:
    driver.actions.errors = [NotFound("there is no such compose")]
    compose = driver.begin(FETCH)
    driver.wait_until(lambda: driver.call(driver.engine.find_plan(compose.id)) is PlanState.ENDED)
    assert driver.actions.calls[compose.id] == [("begin",)]


def test_zombie_changes_nothing(engine_server: EngineServer) -> None:
    with Driver(engine_server.address, heartbeat_seconds=6).running() as driver:  # the heir must end in time
        compose = driver.begin(LONE)
        zombie = driver.take(CUSTOMIZE)
        task = driver.take(CUSTOMIZE)  # which the engine hands out after the limit
        assert (task.job_id, task.attempt) == (zombie.job_id, 2)
        assert not driver.call(driver.engine.heartbeat(zombie.token))
        assert not driver.call(driver.engine.complete(zombie.token))
        assert not driver.call(driver.engine.complete(zombie.token, FULL))
        assert driver.call(driver.engine.complete(task.token))
        assert not driver.call(driver.engine.complete(task.token, FULL))
        assert driver.end(compose) == (None, False)
        assert driver.actions.jobs["customize"] is None
        queued = [call for call in driver.actions.calls[compose.id] if call[0] == "queue_job"]
        assert queued == [("queue_job", "customize", 1), ("queue_job", "customize", 2)]


def test_job_that_loses_three_workers_fails(engine_server: EngineServer) -> None:
    with Driver(engine_server.address, heartbeat_seconds=1).running() as driver:
        compose = driver.begin(LONE)
        assert [driver.take(CUSTOMIZE).attempt for _ in range(3)] == [1, 2, 3]
        error, is_cancelled = driver.end(compose)
        assert error
        assert (error.id, is_cancelled) == (27, False)
        assert error.reason.startswith("step customize: its worker has stopped")


def test_deadline_ends_a_job_that_beats(engine_server: EngineServer) -> None:
    with Driver(engine_server.address, job_seconds=3).running() as driver:
        compose = driver.begin(LONE)
        task = driver.take(CUSTOMIZE)
        while driver.call(driver.engine.heartbeat(task.token)):
            driver.wait(0.3)
        error, _ = driver.end(compose)
        assert error == JobError(27, "step customize: exceeded its deadline of 3 s")
        assert not driver.call(driver.engine.complete(task.token))


def test_failed_upload_is_tried_again(driver: Driver) -> None:
    compose = driver.begin(UPLOADS[0])
    driver.finish(UPLOAD, FULL)
    task = driver.take(UPLOAD)
    assert task.attempt == 2
    assert ("finish_job", "upload") not in driver.actions.calls[compose.id]
    assert ("queue_job", "upload", 2) in driver.actions.calls[compose.id]
    assert driver.call(driver.engine.complete(task.token))
    assert driver.end(compose) == (None, False)


def test_import_is_tried_again_only_if_its_download_failed(driver: Driver) -> None:
    compose = driver.begin(Step("import", JobType.IMPORT))
    driver.finish(IMPORT, JobError(11, "the object store does not answer"))
    driver.finish(IMPORT, REFUSED)
    assert driver.end(compose) == (REFUSED, False)


def test_steps_without_order_run_at_once(driver: Driver) -> None:
    compose = driver.begin(*UPLOADS)
    tasks = [driver.take(UPLOAD), driver.take(UPLOAD)]
    assert {task.compose_id for task in tasks} == {compose.id}
    for task in tasks:
        assert driver.call(driver.engine.complete(task.token))
    assert driver.end(compose) == (None, False)


def test_failure_cancels_the_steps_beside_it(driver: Driver) -> None:
    compose = driver.begin(LONE, UPLOADS[0])
    upload = driver.take(UPLOAD)
    driver.finish(CUSTOMIZE, FULL)
    assert driver.end(compose) == (FULL, False)
    driver.wait_until(lambda: driver.call(driver.engine.find_plan(compose.id)) is PlanState.ENDED)
    assert not driver.call(driver.engine.complete(upload.token))


def test_cancel_at_once(driver: Driver) -> None:
    compose = driver.begin(FETCH, CUSTOMIZED)
    driver.call(driver.engine.cancel_plan(compose.id))
    assert driver.end(compose) == (None, True)
    driver.call(driver.engine.cancel_plan(compose.id))


def test_cancel_of_a_queued_job(driver: Driver) -> None:
    compose = driver.begin(LONE)
    driver.wait_until(lambda: ("queue_job", "customize", 1) in driver.actions.calls[compose.id])
    driver.call(driver.engine.cancel_plan(compose.id))
    assert driver.end(compose) == (None, True)
    driver.wait_until(lambda: driver.call(driver.engine.find_plan(compose.id)) is PlanState.ENDED)
    assert driver.call(driver.engine.poll(CUSTOMIZE, "worker", 2.0)) is None


def test_cancel_of_a_running_job(driver: Driver) -> None:
    compose = driver.begin(LONE)
    task = driver.take(CUSTOMIZE)
    driver.call(driver.engine.cancel_plan(compose.id))
    assert driver.end(compose) == (None, True)
    driver.wait_until(lambda: driver.call(driver.engine.find_plan(compose.id)) is PlanState.ENDED)
    assert not driver.call(driver.engine.complete(task.token))
    assert ("finish_job", "customize") not in driver.actions.calls[compose.id]


def test_cancel_between_the_attempts_of_an_upload(driver: Driver) -> None:
    compose = driver.begin(UPLOADS[0])
    driver.finish(UPLOAD, FULL)
    driver.call(driver.engine.cancel_plan(compose.id))
    assert driver.end(compose) == (None, True)
