"""The rows of jobs, in each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from image_service.jobs.database.objects import ABANDONED
from image_service.jobs.model import ComposeState, JobError, JobProgress, JobState, JobType
from tests.jobs.database.composing import DISK_PLAN, Rows, make_artifact, make_compose

ALL = tuple(JobType)
DAY = 24 * 3600
SOON = timedelta(seconds=30)


def ready(rows: Rows, tenant: str | None = None, max_running: int = 10) -> list[tuple[str, JobType]]:
    """Return the queues that a worker could be served from."""
    found = rows.queues.find_ready(tenant, ALL, "x86_64", max_running)
    return [(queue.tenant, queue.type) for queue in found]


def take(rows: Rows, tenant: str, max_running: int) -> str | None:
    return rows.queues.take_permit(tenant, max_running, rows.clock() + SOON)


def test_jobs_are_those_of_the_plan(rows: Rows) -> None:
    compose, jobs = rows.add()
    first, second = rows.jobs.find_of_compose(compose.id)
    assert (first.step, second.step) == ("customize", "convert")
    assert rows.jobs.find(jobs["convert"]) == second
    assert compose.step_of(second.id) == DISK_PLAN.steps[2]
    assert (second.state, second.tenant, second.architecture) == (JobState.WAITING, "org-1", "x86_64")
    assert rows.jobs.find("no such") is None


def test_queued_job_is_ready_until_it_runs(rows: Rows) -> None:
    _, jobs = rows.add()
    assert ready(rows) == []
    assert rows.queues.mark_queued(jobs["customize"], 1)
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]
    assert ready(rows, "org-2") == []
    assert rows.queues.find_ready(None, [JobType.CONVERT], "x86_64", 10) == []
    assert rows.queues.find_ready(None, ALL, "aarch64", 10) == []
    rows.start(jobs["customize"])
    assert ready(rows) == []
    assert rows.queues.mark_queued(jobs["customize"], 1)  # the engine repeats its call
    assert ready(rows) == []
    assert not rows.queues.mark_queued("no such", 1)


def test_job_is_ready_again_when_its_next_attempt_is_queued(rows: Rows) -> None:
    _, jobs = rows.add()
    job_id = jobs["customize"]
    rows.start(job_id)
    progress = JobProgress(1, 3, "copy")
    assert rows.jobs.record_progress(job_id, 1, progress)
    assert ready(rows) == []
    assert rows.queues.mark_queued(job_id, 2)
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]
    assert not rows.jobs.record_progress(job_id, 1, progress)
    assert not rows.jobs.record_report(job_id, 1, [], {})
    rows.start(job_id, attempt=2)
    assert not rows.jobs.record_progress(job_id, 1, progress)
    assert not rows.jobs.record_report(job_id, 1, [], {})
    job = rows.jobs.find(job_id)
    assert job is not None
    assert (job.attempt, job.worker, job.progress) == (2, "w1", None)
    assert rows.jobs.record_progress(job_id, 2, progress)


def test_attempt_that_did_not_reach_its_worker_is_queued_again(rows: Rows) -> None:
    _, jobs = rows.add()
    for attempt in (1, 2):
        assert rows.queues.mark_queued(jobs["customize"], attempt)
        assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]


def test_tenant_served_least_recently_comes_first(rows: Rows) -> None:
    for tenant in ("org-1", "org-2"):
        for number in range(3):
            _, jobs = rows.add(make_compose(tenant=tenant))
            rows.queues.mark_queued(jobs["customize"], 1)
            if number == 0:
                rows.clock.advance(1)
                rows.start(jobs["customize"], tenant=tenant)
            rows.clock.advance(1)
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE), ("org-2", JobType.CUSTOMIZE)]
    _, jobs = rows.add(make_compose())
    rows.start(jobs["customize"])
    assert ready(rows) == [("org-2", JobType.CUSTOMIZE), ("org-1", JobType.CUSTOMIZE)]
    _, jobs = rows.add(make_compose(tenant="org-3"))
    rows.queues.mark_queued(jobs["customize"], 1)
    assert ready(rows)[0] == ("org-3", JobType.CUSTOMIZE)


def test_permits_and_running_jobs_are_limited(rows: Rows) -> None:
    _, jobs = rows.add()
    _, others = rows.add()
    rows.queues.mark_queued(others["customize"], 1)
    rows.start(jobs["customize"])
    permit = take(rows, "org-1", 2)
    assert permit is not None
    assert take(rows, "org-1", 2) is None
    assert take(rows, "org-2", 2) is not None
    assert ready(rows, max_running=2) == []
    assert ready(rows, max_running=3) == [("org-1", JobType.CUSTOMIZE)]
    rows.queues.release_permit(permit)
    permit = take(rows, "org-1", 2)
    assert permit is not None
    assert rows.queues.start(permit, others["customize"], 1, "w2") is not None
    assert take(rows, "org-1", 2) is None
    rows.jobs.finish(jobs["customize"])
    assert take(rows, "org-1", 2) is not None


def test_permits_expire(rows: Rows) -> None:
    assert take(rows, "org-1", 1) is not None
    assert take(rows, "org-1", 1) is None
    rows.clock.advance(31)
    assert take(rows, "org-1", 1) is not None


@pytest.mark.parametrize("seconds", [120, DAY])
def test_clock_that_is_set_back_changes_neither_the_order_of_tenants_nor_keeps_permits(
    rows: Rows, seconds: int
) -> None:
    for tenant in ("org-1", "org-2"):
        for _ in range(2):
            _, jobs = rows.add(make_compose(tenant=tenant))
            rows.queues.mark_queued(jobs["customize"], 1)
    rows.clock.advance(seconds)
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    assert take(rows, "org-1", 2) is not None
    rows.clock.advance(-seconds)
    assert take(rows, "org-1", 2) is not None  # that of the future does not count
    assert ready(rows) == [("org-2", JobType.CUSTOMIZE), ("org-1", JobType.CUSTOMIZE)]
    _, jobs = rows.add(make_compose(tenant="org-2"))
    rows.start(jobs["customize"], tenant="org-2")
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE), ("org-2", JobType.CUSTOMIZE)]


def test_permits_taken_at_once_do_not_exceed_the_limit(rows: Rows) -> None:
    with ThreadPoolExecutor(4) as threads:
        permits = list(threads.map(lambda _: take(rows, "org-1", 3), range(12)))
    assert sum(permit is not None for permit in permits) == 3


def test_ended_job_does_not_start(rows: Rows) -> None:
    compose, jobs = rows.add()
    rows.composes.finish(compose.id, ComposeState.CANCELLED)
    permit = take(rows, "org-1", 1)
    assert permit is not None
    assert rows.queues.start(permit, jobs["customize"], 1, "w") is None
    assert take(rows, "org-1", 1) is not None  # the permit was given back
    assert not rows.queues.mark_queued(jobs["customize"], 1)


def test_earlier_attempt_does_not_start(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"], attempt=2)
    permit = take(rows, "org-1", 2)
    assert permit is not None
    assert rows.queues.start(permit, jobs["customize"], 1, "w") is None


def test_late_start_of_an_attempt_that_the_engine_has_ended_is_refused(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.queues.mark_queued(jobs["customize"], 1)
    permit = take(rows, "org-1", 2)
    assert permit is not None
    rows.queues.mark_queued(jobs["customize"], 2)  # the replica that has the permit stood still meanwhile
    assert rows.queues.start(permit, jobs["customize"], 1, "w") is None
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]
    assert rows.queues.start("none", jobs["customize"], 2, "w") is not None


def test_job_ends_once_with_the_accepted_artifacts(rows: Rows) -> None:
    _, jobs = rows.add()
    job_id = jobs["customize"]
    rows.start(job_id)
    early = make_artifact(job_id)
    assert rows.objects.add_artifact(job_id, 1, early)
    rows.start(job_id, attempt=2)
    accepted, extra = make_artifact(job_id, 2), make_artifact(job_id, 2, "log")
    for artifact in (accepted, extra):
        assert rows.objects.add_artifact(job_id, 2, artifact)
    assert rows.objects.find_artifacts(job_id, 2) == [accepted, extra]
    assert rows.objects.find_artifacts(job_id, 1) == [early]
    rows.finish(job_id, accepted, result={"log": "x"})
    assert not rows.jobs.finish(job_id, error=JobError(27, "late"))
    job = rows.jobs.find(job_id)
    assert job is not None
    assert (job.state, job.artifacts, job.result) == (JobState.FINISHED, (accepted,), {"log": "x"})
    assert sorted(rows.objects.find_discarded(10)) == sorted([early.key, extra.key])
    assert rows.objects.find_artifacts(job_id, 2) == [accepted]


def test_failure_is_a_state_with_an_error(rows: Rows) -> None:
    _, jobs = rows.add()
    error = JobError(10, "customize: no room", {"needed": 5})
    rows.jobs.finish(jobs["customize"], error=error)
    failed = rows.jobs.find(jobs["customize"])
    assert failed is not None
    assert (failed.state, failed.error) == (JobState.FAILED, error)


def test_artifacts_of_a_failed_job_are_discarded(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    reported = make_artifact(jobs["customize"])
    assert rows.objects.add_artifact(jobs["customize"], 1, reported)
    assert rows.jobs.record_report(jobs["customize"], 1, [reported], {"log": "x"})
    rows.jobs.finish(jobs["customize"], JobError(27, "its worker has stopped"))
    job = rows.jobs.find(jobs["customize"])
    assert job is not None
    assert (job.artifacts, job.result) == ((), {"log": "x"})
    assert rows.objects.find_discarded(10) == [reported.key]


def test_artifact_replaces_one_of_its_name(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    first, second = make_artifact(jobs["customize"]), make_artifact(jobs["customize"])
    for artifact in (first, second):
        rows.objects.add_artifact(jobs["customize"], 1, artifact)
    assert rows.objects.find_artifacts(jobs["customize"], 1) == [second]
    assert rows.objects.find_discarded(10) == [first.key]


def test_artifact_that_comes_after_the_result_harms_no_accepted_one(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    accepted, late = make_artifact(jobs["customize"]), make_artifact(jobs["customize"])
    rows.objects.add_artifact(jobs["customize"], 1, accepted)
    rows.finish(jobs["customize"], accepted)
    assert not rows.objects.add_artifact(jobs["customize"], 1, late)
    assert rows.objects.find_artifacts(jobs["customize"], 1) == [accepted]
    assert rows.objects.find_discarded(10) == [late.key]


def test_accepted_artifact_stays_though_a_later_upload_has_replaced_it(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    accepted, late = make_artifact(jobs["customize"], 1), make_artifact(jobs["customize"], 1)
    for artifact in (accepted, late):
        assert rows.objects.add_artifact(jobs["customize"], 1, artifact)
    rows.finish(jobs["customize"], accepted)
    assert rows.objects.find_discarded(10) == [late.key]


def test_artifact_of_an_attempt_that_is_over_is_discarded(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"], attempt=2)
    zombie = make_artifact(jobs["customize"], 1)
    assert not rows.objects.add_artifact(jobs["customize"], 1, zombie)
    assert rows.objects.find_discarded(10) == [zombie.key]


def test_announced_object_is_discarded_unless_it_becomes_an_artifact(rows: Rows) -> None:
    _, jobs = rows.add(make_compose(store_bytes=10))
    rows.start(jobs["customize"])
    job = rows.jobs.find(jobs["customize"])
    assert job is not None
    stored, lost = make_artifact(jobs["customize"]), make_artifact(jobs["customize"], name="lost")
    for artifact in (stored, lost, lost):
        rows.objects.announce_object(artifact.key, job, 1)
    assert rows.objects.find_discarded(10) == []
    assert rows.objects.add_artifact(jobs["customize"], 1, stored)
    rows.clock.advance(ABANDONED.total_seconds())
    assert rows.objects.find_discarded(10) == [lost.key]


def test_jobs_are_counted_by_kind_and_state(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.add()
    rows.composes.finish(rows.add()[0].id, ComposeState.CANCELLED)
    rows.start(jobs["customize"])
    counts = {(count.type, count.state): count.count for count in rows.jobs.count()}
    assert counts == {
        (JobType.CUSTOMIZE, JobState.RUNNING): 1,
        (JobType.CUSTOMIZE, JobState.WAITING): 1,
        (JobType.CONVERT, JobState.WAITING): 2,
    }
