"""The rows of jobs, in each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from image_service.jobs.metadata.jobs import ABANDONED
from image_service.jobs.model import ComposeState, JobError, JobProgress, JobState, JobType
from tests.jobs.metadata.composing import DISK_PLAN, NOW, Rows, make_artifact, make_compose

ALL = tuple(JobType)
LIMIT = timedelta(seconds=120)
SOON = timedelta(seconds=30)


def ready(rows: Rows, tenant: str | None = None, max_running: int = 10) -> list[tuple[str, JobType]]:
    """Return the queues that a worker could be served from."""
    found = rows.jobs.find_ready(tenant, ALL, "x86_64", rows.clock() - LIMIT, max_running)
    return [(queue.tenant, queue.type) for queue in found]


def take(rows: Rows, tenant: str, max_running: int) -> str | None:
    return rows.jobs.take_permit(tenant, max_running, rows.clock() - LIMIT, rows.clock() + SOON)


def test_jobs_are_those_of_the_plan(rows: Rows) -> None:
    compose, jobs = rows.add()
    first, second = rows.jobs.find_of_compose(compose.id)
    assert (first.step, second.step) == ("customize", "convert")
    assert rows.jobs.find(jobs["convert"]) == second
    assert (second.arguments, second.inputs) == (DISK_PLAN.steps[2].arguments, DISK_PLAN.steps[2].inputs)
    assert (second.state, second.tenant, second.architecture) == (JobState.WAITING, "org-1", "x86_64")
    assert rows.jobs.find("no such") is None


def test_queued_job_is_ready_until_it_runs(rows: Rows) -> None:
    _, jobs = rows.add()
    assert ready(rows) == []
    assert rows.jobs.mark_queued(jobs["customize"])
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]
    assert ready(rows, "org-2") == []
    assert rows.jobs.find_ready(None, [JobType.CONVERT], "x86_64", NOW, 10) == []
    assert rows.jobs.find_ready(None, ALL, "aarch64", NOW, 10) == []
    rows.start(jobs["customize"])
    assert ready(rows) == []
    assert rows.jobs.mark_queued(jobs["customize"])  # the engine repeats its call
    assert ready(rows) == []
    assert not rows.jobs.mark_queued("no such")


def test_job_without_heartbeat_is_ready_again(rows: Rows) -> None:
    _, jobs = rows.add()
    job_id = jobs["customize"]
    rows.start(job_id)
    rows.clock.advance(100)
    assert rows.jobs.record_heartbeat(job_id, 1, JobProgress(1, 3, "copy"))
    rows.clock.advance(119)
    assert ready(rows) == []
    rows.clock.advance(2)
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]
    rows.start(job_id, attempt=2)
    assert not rows.jobs.record_heartbeat(job_id, 1)
    assert rows.jobs.record_heartbeat(job_id, 2)
    job = rows.jobs.find(job_id)
    assert job is not None
    assert (job.attempt, job.worker, job.progress) == (2, "w1", None)


def test_failed_attempt_is_ready_at_once(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    rows.jobs.requeue(jobs["customize"], 2)
    assert ready(rows) == []
    rows.jobs.requeue(jobs["customize"], 1)
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE)]


def test_tenant_served_least_recently_comes_first(rows: Rows) -> None:
    for tenant in ("org-1", "org-2"):
        for number in range(3):
            _, jobs = rows.add(make_compose(tenant=tenant))
            rows.jobs.mark_queued(jobs["customize"])
            if number == 0:
                rows.clock.advance(1)
                rows.start(jobs["customize"], tenant=tenant)
            rows.clock.advance(1)
    assert ready(rows) == [("org-1", JobType.CUSTOMIZE), ("org-2", JobType.CUSTOMIZE)]
    _, jobs = rows.add(make_compose())
    rows.start(jobs["customize"])
    assert ready(rows) == [("org-2", JobType.CUSTOMIZE), ("org-1", JobType.CUSTOMIZE)]
    _, jobs = rows.add(make_compose(tenant="org-3"))
    rows.jobs.mark_queued(jobs["customize"])
    assert ready(rows)[0] == ("org-3", JobType.CUSTOMIZE)


def test_permits_and_running_jobs_are_limited(rows: Rows) -> None:
    _, jobs = rows.add()
    _, others = rows.add()
    rows.jobs.mark_queued(others["customize"])
    rows.start(jobs["customize"])
    permit = take(rows, "org-1", 2)
    assert permit is not None
    assert take(rows, "org-1", 2) is None
    assert take(rows, "org-2", 2) is not None
    assert ready(rows, max_running=2) == []
    assert ready(rows, max_running=3) == [("org-1", JobType.CUSTOMIZE)]
    rows.jobs.release_permit(permit)
    permit = take(rows, "org-1", 2)
    assert permit is not None
    assert rows.jobs.start(permit, others["customize"], 1, "w2") is not None
    assert take(rows, "org-1", 2) is None
    rows.jobs.finish(jobs["customize"])
    assert take(rows, "org-1", 2) is not None


def test_permits_expire(rows: Rows) -> None:
    assert take(rows, "org-1", 1) is not None
    assert take(rows, "org-1", 1) is None
    rows.clock.advance(31)
    assert take(rows, "org-1", 1) is not None


def test_permits_taken_at_once_do_not_exceed_the_limit(rows: Rows) -> None:
    with ThreadPoolExecutor(4) as threads:
        permits = list(threads.map(lambda _: take(rows, "org-1", 3), range(12)))
    assert sum(permit is not None for permit in permits) == 3


def test_ended_job_does_not_start(rows: Rows) -> None:
    compose, jobs = rows.add()
    rows.composes.finish(compose.id, ComposeState.CANCELLED)
    permit = take(rows, "org-1", 1)
    assert permit is not None
    assert rows.jobs.start(permit, jobs["customize"], 1, "w") is None
    assert take(rows, "org-1", 1) is not None  # the permit was given back
    assert not rows.jobs.mark_queued(jobs["customize"])


def test_earlier_attempt_does_not_start(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"], attempt=2)
    permit = take(rows, "org-1", 2)
    assert permit is not None
    assert rows.jobs.start(permit, jobs["customize"], 1, "w") is None


def test_job_ends_once_with_the_accepted_artifacts(rows: Rows) -> None:
    _, jobs = rows.add()
    job_id = jobs["customize"]
    rows.start(job_id)
    early = make_artifact(job_id)
    assert rows.jobs.add_artifact(job_id, 1, early)
    rows.start(job_id, attempt=2)
    accepted, extra = make_artifact(job_id, 2), make_artifact(job_id, 2, "log")
    for artifact in (accepted, extra):
        assert rows.jobs.add_artifact(job_id, 2, artifact)
    assert rows.jobs.find_artifacts(job_id, 2) == [accepted, extra]
    assert rows.jobs.find_artifacts(job_id, 1) == [early]
    assert rows.jobs.finish(job_id, artifacts=[accepted], result={"log": "x"})
    assert not rows.jobs.finish(job_id, error=JobError(27, "late"))
    job = rows.jobs.find(job_id)
    assert job is not None
    assert (job.state, job.artifacts, job.result) == (JobState.FINISHED, (accepted,), {"log": "x"})
    assert sorted(rows.jobs.find_discarded(10)) == sorted([early.key, extra.key])
    assert rows.jobs.find_artifacts(job_id, 2) == [accepted]


def test_failure_is_a_state_with_an_error(rows: Rows) -> None:
    _, jobs = rows.add()
    error = JobError(10, "customize: no room", {"needed": 5})
    rows.jobs.finish(jobs["customize"], error=error)
    failed = rows.jobs.find(jobs["customize"])
    assert failed is not None
    assert (failed.state, failed.error) == (JobState.FAILED, error)


def test_artifact_replaces_one_of_its_name(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    first, second = make_artifact(jobs["customize"]), make_artifact(jobs["customize"])
    for artifact in (first, second):
        rows.jobs.add_artifact(jobs["customize"], 1, artifact)
    assert rows.jobs.find_artifacts(jobs["customize"], 1) == [second]
    assert rows.jobs.find_discarded(10) == [first.key]


def test_artifact_that_comes_after_the_result_harms_no_accepted_one(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    accepted, late = make_artifact(jobs["customize"]), make_artifact(jobs["customize"])
    rows.jobs.add_artifact(jobs["customize"], 1, accepted)
    rows.jobs.finish(jobs["customize"], artifacts=[accepted])
    assert not rows.jobs.add_artifact(jobs["customize"], 1, late)
    assert rows.jobs.find_artifacts(jobs["customize"], 1) == [accepted]
    assert rows.jobs.find_discarded(10) == [late.key]


def test_accepted_artifact_stays_though_a_later_upload_has_replaced_it(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    accepted, late = make_artifact(jobs["customize"], 1), make_artifact(jobs["customize"], 1)
    for artifact in (accepted, late):
        assert rows.jobs.add_artifact(jobs["customize"], 1, artifact)
    assert rows.jobs.finish(jobs["customize"], artifacts=[accepted])
    assert rows.jobs.find_discarded(10) == [late.key]


def test_artifact_of_an_attempt_that_is_over_is_discarded(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"], attempt=2)
    zombie = make_artifact(jobs["customize"], 1)
    assert not rows.jobs.add_artifact(jobs["customize"], 1, zombie)
    assert rows.jobs.find_discarded(10) == [zombie.key]


def test_announced_object_is_discarded_unless_it_becomes_an_artifact(rows: Rows) -> None:
    _, jobs = rows.add()
    rows.start(jobs["customize"])
    stored, lost = make_artifact(jobs["customize"]), make_artifact(jobs["customize"], name="lost")
    for artifact in (stored, lost, lost):
        rows.jobs.announce_object(artifact.key)
    assert rows.jobs.find_discarded(10) == []
    assert rows.jobs.add_artifact(jobs["customize"], 1, stored)
    rows.clock.advance(ABANDONED.total_seconds())
    assert rows.jobs.find_discarded(10) == [lost.key]


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
