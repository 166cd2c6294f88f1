"""Polls of workers: jobs, their order, limits, and clients that disconnect."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import deferLater

from image_service.core.errors import (
    EngineUnavailable,
    JobNotRunning,
    RowNotAuthentic,
    StoreFailed,
    Unavailable,
    UnknownBaseImage,
)
from image_service.jobs.database.tables import COMPOSES, JOBS, open_database
from image_service.jobs.dispatch.dispatcher import WorkerPoll
from image_service.jobs.dispatch.results import WorkerResult
from image_service.jobs.engine.engine import queue_name
from image_service.jobs.model import ComposeState, JobState, JobType
from image_service.jobs.principal import Principal
from tests.jobs.dispatch.dispatching import ARCHITECTURE
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.jobs.dispatch.handout import HandedJob
    from image_service.jobs.model import Job
    from tests.jobs.dispatch.dispatching import Dispatching, OpenDispatching


def wanted(tenant: str | None = "", *types: JobType, architecture: str = ARCHITECTURE) -> WorkerPoll:
    return WorkerPoll(tenant, set(types) or set(JobType), architecture, "w1")


def start(dispatching: Dispatching, poll: WorkerPoll) -> Deferred[HandedJob | None]:
    return Deferred.fromCoroutine(dispatching.dispatcher.poll(poll))


async def until(reactor: EPollReactor, condition: Callable[[], object]) -> None:
    while not condition():
        await deferLater(reactor, 0.01)


@ensure_deferred
async def test_a_worker_gets_a_queued_job_with_its_inputs(dispatching: Dispatching) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(wanted())
    assert handed is not None
    assert (handed.job.id, handed.job.state, handed.job.attempt) == (job.id, JobState.RUNNING, 1)
    inputs = handed.arguments["inputs"]
    assert isinstance(inputs, dict)
    assert inputs["base"]["size"] == len(b"a base disk")
    assert len(inputs["base"]["sha256"]) == 64
    assert handed.arguments["output"] == "disk.raw"
    assert handed.token not in repr(handed)


@pytest.mark.parametrize(
    "poll",
    [
        wanted("org-2"),
        wanted("", JobType.UPLOAD, JobType.CONVERT),
        wanted("", architecture="aarch64"),
    ],
    ids=["tenant", "type", "architecture"],
)
@ensure_deferred
async def test_a_worker_gets_no_job_of_others(dispatching: Dispatching, poll: WorkerPoll) -> None:
    await dispatching.queue()
    assert await dispatching.dispatcher.poll(poll) is None


@ensure_deferred
async def test_damaged_job_keeps_no_other_from_workers(open_dispatching: OpenDispatching) -> None:
    dispatching = open_dispatching(max_running=1)
    damaged, other = await dispatching.queue(), await dispatching.queue()
    damage(dispatching, damaged)
    handed = await dispatching.dispatcher.poll(wanted())
    assert handed is not None
    assert handed.job.id == other.id
    attempt = dispatching.engine.find(damaged.id)
    assert attempt.error is not None
    assert attempt.error.reason.startswith(f"job {damaged.id}: the row in the database is not as")


@ensure_deferred
async def test_worker_of_a_damaged_job_stops(dispatching: Dispatching) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(wanted())
    assert handed is not None
    damage(dispatching, job)
    principal = Principal()
    assert await dispatching.attempts.beat(principal, handed.token)
    with pytest.raises(JobNotRunning, match=job.id):
        await dispatching.attempts.finish(principal, handed.token, WorkerResult())
    with pytest.raises(RowNotAuthentic):
        await dispatching.actions.finish_job(job.compose_id, job.step, None)
    await dispatching.actions.finish(job.compose_id, None, cancelled=False)
    summary = dispatching.rows.composes.find_summary(job.compose_id)
    assert summary is not None
    assert summary.error is not None
    assert job.id in summary.error.reason


def damage(dispatching: Dispatching, job: Job) -> None:
    change = sa.update(JOBS).where(JOBS.c.id == job.id).values(error=[7])
    dispatching.rows.jobs._database.transact(lambda connection: connection.execute(change).close())


@ensure_deferred
async def test_a_waiting_worker_gets_a_job_as_soon_as_it_is_queued(
    reactor: EPollReactor, open_dispatching: OpenDispatching
) -> None:
    dispatching = open_dispatching(poll_seconds=30)
    polls = [start(dispatching, wanted()) for _ in range(2)]
    await deferLater(reactor, 0.05)
    first, second = await dispatching.queue(), await dispatching.queue()
    handed = await gatherResults(polls)
    assert {each.job.id for each in handed if each} == {first.id, second.id}


@ensure_deferred
async def test_unknown_sizes_of_inputs_are_null(dispatching: Dispatching) -> None:
    for error in (Unavailable("it is being fetched"), StoreFailed("away")):
        dispatching.contents.inputs["base"] = error
        await dispatching.queue()
        handed = await dispatching.dispatcher.poll(wanted())
        assert handed is not None
        assert handed.arguments["inputs"] == {"base": {"size": None, "sha256": None}}


@ensure_deferred
async def test_a_job_whose_input_can_never_be_read_fails(dispatching: Dispatching) -> None:
    dispatching.contents.inputs["base"] = UnknownBaseImage("4.16 is gone")
    job = await dispatching.queue()
    assert await dispatching.dispatcher.poll(wanted()) is None
    error = dispatching.engine.find(job.id).error
    assert error is not None
    assert error.reason == "step customize: an input cannot be read: 4.16 is gone"


@ensure_deferred
async def test_a_job_whose_plan_was_changed_in_the_database_fails_alone(
    dispatching: Dispatching, tmp_path: Path
) -> None:
    changed = await dispatching.queue()
    with closing(open_database(None, tmp_path)) as database:
        change = sa.update(COMPOSES).values(source_image="of another tenant")
        database.transact(lambda connection: connection.execute(change).close())
    assert await dispatching.dispatcher.poll(wanted()) is None
    error = dispatching.engine.find(changed.id).error
    assert error is not None
    assert f"the plan of {changed.compose_id} is not as the service has written it" in error.reason
    await dispatching.actions.finish(changed.compose_id, error, cancelled=False)
    summary = dispatching.rows.composes.find_summary(changed.compose_id)
    assert summary is not None
    assert summary.state is ComposeState.FAILURE
    other = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(wanted())
    assert handed is not None
    assert handed.job.id == other.id


@ensure_deferred
async def test_a_tenant_with_many_jobs_delays_another_by_one_job(dispatching: Dispatching) -> None:
    for _ in range(10):
        await dispatching.queue("org-1")
    served = []
    for number in range(6):
        if number == 3:
            await dispatching.queue("org-2")
        handed = await dispatching.dispatcher.poll(wanted(None))
        assert handed is not None
        served.append(handed.job.tenant)
    assert served[:3] == ["org-1"] * 3
    assert served[3] == "org-2"
    assert served[4:] == ["org-1"] * 2


@ensure_deferred
async def test_a_tenant_runs_at_most_so_many_jobs(open_dispatching: OpenDispatching) -> None:
    dispatching = open_dispatching(max_running=2)
    for _ in range(5):
        await dispatching.queue("org-1")
    await dispatching.queue("org-2")
    handed = await gatherResults([start(dispatching, wanted(None)) for _ in range(6)])
    assert Counter(each.job.tenant for each in handed if each) == {"org-1": 2, "org-2": 1}
    running = next(each for each in handed if each and each.job.tenant == "org-1")
    await dispatching.actions.finish_job(running.job.compose_id, "customize", None)
    after = await dispatching.dispatcher.poll(wanted("org-1"))
    assert after is not None
    assert await dispatching.dispatcher.poll(wanted("org-1")) is None


@ensure_deferred
async def test_ten_waiting_workers_do_not_each_ask_the_engine(open_dispatching: OpenDispatching) -> None:
    dispatching = open_dispatching(poll_seconds=3)
    first = dispatching.add("org-1")
    await dispatching.actions.queue_job(first.id, "customize", 1)  # the engine does not have it yet
    polls = [start(dispatching, wanted(None)) for _ in range(10)]
    second = await dispatching.queue("org-2")
    handed = await gatherResults(polls)
    assert [each.job.id for each in handed if each] == [second.id]
    # Once for each, and once more if a worker has read the rows just before the first poll ended.
    queues = {queue_name(org, JobType.CUSTOMIZE, "x86_64") for org in ("org-1", "org-2")}
    assert dispatching.engine.polls.keys() == queues
    assert max(dispatching.engine.polls.values()) <= 2


@ensure_deferred
async def test_attempts_without_rows_are_ended_and_delay_nobody(dispatching: Dispatching) -> None:
    orphans = [await dispatching.queue() for _ in range(3)]
    for orphan in orphans:
        dispatching.rows.composes.delete(orphan.compose_id)
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(wanted())
    assert handed is not None
    assert handed.job.id == job.id
    errors = [dispatching.engine.find(orphan.id).error for orphan in orphans]
    assert [error and error.id for error in errors] == [10] * 3


@ensure_deferred
async def test_a_lost_job_goes_to_another_worker(dispatching: Dispatching) -> None:
    job = await dispatching.queue()
    first = await dispatching.dispatcher.poll(wanted())
    assert first is not None
    await dispatching.actions.queue_job(job.compose_id, "customize", 2)
    dispatching.engine.expire(dispatching.engine.find(job.id), job)
    second = await dispatching.dispatcher.poll(wanted())
    assert second is not None
    assert (second.job.id, second.job.attempt) == (job.id, 2)
    assert second.token != first.token


@ensure_deferred
async def test_an_unavailable_engine_costs_no_permit(open_dispatching: OpenDispatching) -> None:
    dispatching = open_dispatching(max_running=1)
    await dispatching.queue()
    dispatching.engine.error = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await dispatching.dispatcher.poll(wanted())
    dispatching.engine.error = None
    dispatching.dispatcher.wake()
    assert await dispatching.dispatcher.poll(wanted()) is not None


@ensure_deferred
async def test_a_job_for_a_client_that_has_left_goes_to_the_next(
    reactor: EPollReactor, open_dispatching: OpenDispatching
) -> None:
    dispatching = open_dispatching(poll_seconds=30)
    compose = dispatching.add("org-1")
    await dispatching.actions.queue_job(compose.id, "customize", 1)
    left = start(dispatching, wanted("org-1"))
    await until(reactor, lambda: dispatching.engine.polls)
    left.cancel()
    with pytest.raises(CancelledError):
        await left
    dispatching.engine.queue(dispatching.job(compose))
    await until(reactor, lambda: dispatching.job(compose).state is JobState.RUNNING)
    foreign = start(dispatching, wanted("org-2"))
    handed = await dispatching.dispatcher.poll(wanted("org-1"))
    foreign.cancel()
    with pytest.raises(CancelledError):
        await foreign
    assert handed is not None
    assert (handed.job.compose_id, handed.job.attempt) == (compose.id, 1)


@ensure_deferred
async def test_a_kept_job_that_has_ended_is_dropped(
    reactor: EPollReactor, open_dispatching: OpenDispatching
) -> None:
    dispatching = open_dispatching(poll_seconds=1)
    compose = dispatching.add()
    await dispatching.actions.queue_job(compose.id, "customize", 1)
    left = start(dispatching, wanted())
    await until(reactor, lambda: dispatching.engine.polls)
    left.cancel()
    left.addErrback(lambda _: None)
    attempt = dispatching.engine.queue(dispatching.job(compose))
    await until(reactor, lambda: dispatching.job(compose).state is JobState.RUNNING)
    attempt.is_present = False
    assert await dispatching.dispatcher.poll(wanted()) is None


async def abort_polls(reactor: EPollReactor, dispatching: Dispatching, number: int) -> None:
    """Start polls that are canceled at random moments, while jobs are queued."""
    chance = random.Random(7)  # noqa: S311 - moments, not secrets
    for index in range(number):
        if index % 4 == 0:
            await dispatching.queue("org-1")
        poll = start(dispatching, wanted(None))
        await deferLater(reactor, chance.random() * 0.02)
        poll.cancel()
        with suppress(CancelledError):
            handed = await poll
            if handed is not None:
                dispatching.rows.jobs.finish(handed.job.id)


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.soak)])
@ensure_deferred
async def test_aborted_polls_lose_no_job(
    reactor: EPollReactor, open_dispatching: OpenDispatching, number: int
) -> None:
    dispatching = open_dispatching(poll_seconds=3)
    await abort_polls(reactor, dispatching, number)
    while (handed := await dispatching.dispatcher.poll(wanted(None))) is not None:
        dispatching.rows.jobs.finish(handed.job.id)
    assert dispatching.rows.jobs.count() == []
    attempts = dispatching.engine.attempts.values()
    assert [attempt.task.attempt for attempt in attempts] == [1] * (number // 4)
