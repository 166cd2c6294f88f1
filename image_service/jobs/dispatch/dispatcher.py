"""Finds jobs for workers: fairly, within the limits of tenants; a client that disconnects loses none."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.core.errors import RowNotAuthentic
from image_service.jobs.dispatch.abandoned import AbandonedResults
from image_service.jobs.engine.engine import queue_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from twisted.internet.interfaces import IReactorTime

    from image_service.jobs.database.job_queues import ReadyQueue
    from image_service.jobs.dispatch.handout import HandedJob, JobHandout
    from image_service.jobs.dispatch.rows import DispatchRows
    from image_service.jobs.engine.engine import Engine, Task
    from image_service.jobs.model import Job, JobType
    from image_service.settings.jobs.jobs import JobsSettings

ENGINE_POLL_SECONDS = 2.0
QUERY_SECONDS = 1.0
"""Between two queries for jobs that another replica has queued."""
_EMPTY_SECONDS = 1.0  # for which polls skip a queue that was empty
_PERMIT_SECONDS = 30.0  # more than a poll of the engine takes


@attrs.frozen
class WorkerPoll:
    """The parameters of a worker's poll.

    Args:
        tenant: None: of all.
        worker: names it in the engine and in rows.
    """

    tenant: str | None
    types: Collection[JobType]
    architecture: str
    worker: str

    def admits(self, job: Job) -> bool:
        """Return True if the worker may do a job."""
        is_of_tenant = self.tenant is None or self.tenant == job.tenant
        return is_of_tenant and job.type in self.types and job.architecture == self.architecture


class JobDispatcher:
    """Waits for jobs for workers."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        rows: DispatchRows,
        engine: Engine,
        handout: JobHandout,
        settings: JobsSettings,
    ) -> None:
        self._clock = clock
        self._rows = rows
        self._engine = engine
        self._handout = handout
        self._settings = settings
        self._abandoned: AbandonedResults[HandedJob] = AbandonedResults(
            clock.seconds, settings.heartbeat_seconds
        )
        self._empty_until: dict[str, float] = {}
        self._fetching: Counter[str] = Counter()
        self._waiting: dict[Deferred[None], None] = {}  # in the order in which they are woken
        self._wakes = 0

    def wake(self) -> None:
        """Wake waiting polls, because a job was queued or has ended."""
        self._empty_until.clear()
        self._look_again()

    def _look_again(self) -> None:
        self._wakes += 1
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.callback(None)

    async def poll(self, wanted: WorkerPoll) -> HandedJob | None:
        """Return an attempt for a worker; None: there was none within ``JOBS_POLL_TIMEOUT``.

        If a caller cancels this call, its attempt goes to the next caller that may have it. If a caller gets
        an attempt and disconnects, the engine repeats the attempt after ``JOBS_HEARTBEAT_TIMEOUT``.

        Raises:
            EngineUnavailable: the engine does not answer.
            StoreFailed: the database does not answer.
        """
        deadline = self._clock.seconds() + self._settings.poll_seconds
        while True:
            wakes = self._wakes
            handed = await self._take(wanted)
            if handed is not None:
                self._log.info(
                    "worker {worker} has job {job}: {step} of compose {compose}, attempt {attempt}",
                    worker=wanted.worker,
                    job=handed.job.id,
                    step=handed.job.step,
                    compose=handed.job.compose_id,
                    attempt=handed.job.attempt,
                )
                return handed
            left = deadline - self._clock.seconds()
            if left <= 0:
                return None
            if wakes == self._wakes:
                await self._wait(min(left, QUERY_SECONDS))

    async def _wait(self, seconds: float) -> None:
        """Wait until there may be a job."""
        waiter: Deferred[None] = Deferred()
        waiter.addTimeout(seconds, self._clock, onTimeoutCancel=lambda _, __: None)
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def _take(self, wanted: WorkerPoll) -> HandedJob | None:
        """Return the kept attempt of a disconnected client, or one of a queue; None: there is none now."""
        while left_behind := self._abandoned.pop(lambda handed: wanted.admits(handed.job)):
            handed = await self._abandoned.carry_out(self._handout.renew(left_behind))
            if handed is not None:
                return handed
        arguments = wanted.tenant, wanted.types, wanted.architecture, self._settings.max_running
        for queue in await self._rows.call(self._rows.queues.find_ready, *arguments):
            name = queue_name(queue.tenant, queue.type, queue.architecture)
            is_empty = self._empty_until.get(name, 0) > self._clock.seconds()
            if is_empty or self._fetching[name] >= queue.count:
                continue
            handed = await self._abandoned.carry_out(self._fetch(queue, name, wanted.worker))
            if handed is not None:
                return handed
        return None

    async def _fetch(self, queue: ReadyQueue, name: str, worker: str) -> HandedJob | None:
        """Return the next attempt of a queue; None: the engine has none, or the tenant is at its limit."""
        self._fetching[name] += 1
        started = None
        try:
            started = await self._start_next(queue, name, worker)
        finally:
            self._fetching[name] -= 1
            if started is None:
                self._empty_until[name] = self._clock.seconds() + _EMPTY_SECONDS
            self._look_again()
        return None if started is None else await self._handout.prepare(*started)

    async def _start_next(self, queue: ReadyQueue, name: str, worker: str) -> tuple[Job, Task] | None:
        """Return the next attempt as running; those without rows, or with a damaged one, are ended."""
        rows = self._rows
        while True:
            expires = datetime.now(UTC) + timedelta(seconds=_PERMIT_SECONDS)
            arguments = queue.tenant, self._settings.max_running, expires
            permit = await rows.call(rows.queues.take_permit, *arguments)
            if permit is None:
                return None
            task = await self._poll_engine(name, worker, permit)
            if task is None:
                return None
            try:
                job = await rows.call(rows.queues.start, permit, task.job_id, task.attempt, worker)
            except RowNotAuthentic as error:
                await rows.call(rows.queues.release_permit, permit)
                await self._handout.refuse(task, error.detail)
                continue
            if job is not None:
                return job, task
            await self._handout.refuse(task)

    async def _poll_engine(self, name: str, worker: str, permit: str) -> Task | None:
        """Return the engine's next attempt; if there is none, the permit is given back."""
        task = None
        try:
            task = await self._engine.poll(name, worker, ENGINE_POLL_SECONDS)
        finally:
            if task is None:
                await self._rows.call(self._rows.queues.release_permit, permit)
        return task
