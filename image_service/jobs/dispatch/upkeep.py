"""Keeps rows, the job engine and the object store consistent. Each replica does so; steps may be repeated.

Rows come first: the service adds a compose, then starts it; it discards an object by a row, then deletes it.
So the rows show the steps that a killed process has left out.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.core.errors import Conflict, EngineUnavailable, RowNotAuthentic, StoreDenied, StoreFailed
from image_service.jobs.database.statements import utc_now
from image_service.jobs.engine.engine import PlanState
from image_service.jobs.model import ComposeState, JobError, JobErrorId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.objects.store import ObjectStorage
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.images import ImageRepository
    from image_service.jobs.database.jobs import JobRepository
    from image_service.jobs.database.objects import ObjectRepository
    from image_service.jobs.database.tasks import TaskRepository
    from image_service.jobs.database.workers import WorkerRepository
    from image_service.jobs.engine.engine import Engine

RECONCILE_SECONDS = 2.0
"""Between two calls of `Reconciler.reconcile`."""
EXPIRE_SECONDS = 60.0
"""Between two calls of `Expiry.expire`."""
_UNSTARTED = timedelta(seconds=3)  # in which the replica that has added a compose starts it
_BATCH = 100
_RECHECK = timedelta(seconds=30)  # of a plan that the engine has and has not begun
_LOOKS = 10  # at plans in one call: each is a request to the engine
_SILENT = timedelta(hours=1)
_REPLAY_SECONDS = 3600.0  # longer than a signature is valid
_UNFINISHED = timedelta(days=1)  # longer than a job may upload
# The last step of a plan ends its compose: a row that has not ended by then never will.
_LOST = {
    PlanState.UNKNOWN: JobError(JobErrorId.WORKER_LOST, "the job engine has lost this compose"),
    PlanState.ENDED: JobError(
        JobErrorId.WORKER_LOST, "the job engine has ended this compose without a result"
    ),
}
_log = Logger()


class Outage:
    """Logs the begin and the end of an outage, once each."""

    def __init__(self) -> None:
        self._reason = ""

    async def during(self, work: Callable[[], Awaitable[None]]) -> None:
        """Carry out work; log that the engine, the database or the store is unavailable."""
        try:
            await work()
        except (EngineUnavailable, StoreFailed) as error:
            if error.detail != self._reason:
                _log.warn("upkeep is interrupted: {reason}", reason=error.detail)
            self._reason = error.detail
        else:
            if self._reason:
                _log.info("upkeep works again")
            self._reason = ""


class Reconciler:
    """Starts composes without a plan in the engine, and ends those whose plan is lost, or a row damaged.

    Args:
        now: in UTC.
    """

    def __init__(
        self,
        composes: ComposeRepository,
        jobs: JobRepository,
        engine: Engine,
        in_thread: InThread,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._composes = composes
        self._jobs = jobs
        self._engine = engine
        self._in_thread = in_thread
        self._now = now
        self._outage = Outage()
        self._last_id = ""
        self._waiting: dict[str, datetime] = {}
        """When the engine was found to have the plan of a compose that has not begun, by id."""

    async def reconcile(self) -> None:
        """Compare rows with the engine; of those that run, some at each call."""
        await self._outage.during(self._reconcile)

    async def _reconcile(self) -> None:
        now = self._now()
        self._waiting = {id_: since for id_, since in self._waiting.items() if abs(now - since) < _RECHECK}
        find = partial(self._composes.find_unstarted, now - _UNSTARTED, _BATCH, self._waiting.keys())
        for compose_id in await self._in_thread(find):
            await self._start(compose_id)
            self._waiting[compose_id] = now
        ids = await self._in_thread(partial(self._composes.find_unfinished, self._last_id, _LOOKS))
        self._last_id = ids[-1] if len(ids) == _LOOKS else ""
        for compose_id in ids:
            await self._look_at(compose_id)

    async def _start(self, compose_id: str) -> None:
        """Start a plan unless the engine has it; end a compose whose plan is not authentic."""
        try:
            compose = await self._in_thread(partial(self._composes.find, compose_id))
        except RowNotAuthentic as error:
            await self._end(compose_id, JobError(JobErrorId.BUILD_FAILED, error.detail))
            return
        if compose is None:
            return
        if await self._engine.start_plan(compose):
            _log.info("started compose {id}, which no process had started", id=compose_id)
        else:
            await self._look_at(compose_id)

    async def _look_at(self, compose_id: str) -> None:
        """End a compose of which a row is damaged, or whose plan the engine does not have any more."""
        error = await self._in_thread(partial(self._find_damage, compose_id))
        error = error or _LOST.get(await self._engine.find_plan(compose_id))
        if error is not None:
            await self._end(compose_id, error)

    def _find_damage(self, compose_id: str) -> JobError | None:
        try:
            self._composes.find(compose_id)
            self._jobs.find_of_compose(compose_id)
        except RowNotAuthentic as error:
            return JobError(JobErrorId.BUILD_FAILED, error.detail)
        return None

    async def _end(self, compose_id: str, error: JobError) -> None:
        finish = partial(self._composes.finish, compose_id, ComposeState.FAILURE, error=error)
        if await self._in_thread(finish):
            _log.warn("compose {id} failed: {reason}", id=compose_id, reason=error.reason)
            await self._engine.cancel_plan(compose_id)  # its jobs may be in queues


@attrs.frozen(eq=False)
class Expiry:
    """Deletes expired composes and images, answers, discarded objects and lost workers.

    Args:
        in_thread: runs calls of the rows and of the store.
        image_retention_seconds: of imported images; 0: they are kept.
        now: in UTC.
        monotonic: seconds of a clock that nobody sets.
    """

    _composes: ComposeRepository
    _objects: ObjectRepository
    _images: ImageRepository
    _tasks: TaskRepository
    _workers: WorkerRepository
    _store: ObjectStorage
    _in_thread: InThread
    _retention_seconds: float = attrs.field(kw_only=True)
    _image_retention_seconds: float = attrs.field(kw_only=True)
    _now: Callable[[], datetime] = utc_now
    _monotonic: Callable[[], float] = time.monotonic
    _outage: Outage = attrs.field(factory=Outage, init=False)
    _times: deque[tuple[float, datetime]] = attrs.field(factory=deque, init=False)
    """The time at each call, by seconds: those of the last hour, and one before."""

    async def expire(self) -> None:
        """Delete composes that are too old, then the objects that nothing refers to any more."""
        await self._outage.during(self._expire)

    async def _expire(self) -> None:
        await self._in_thread(self._delete_composes)
        if self._image_retention_seconds:
            await self._in_thread(self._delete_images)
        if (before := self._earliest_time()) is not None:
            await self._in_thread(partial(self._tasks.forget_answers, before))
        await self._in_thread(partial(self._workers.remove, self._now() - _SILENT))
        while await self._in_thread(self._delete_objects):
            pass
        await self._in_thread(partial(self._store.remove_unfinished, self._now() - _UNFINISHED))

    def _earliest_time(self) -> datetime | None:
        """Return the earliest time that the clock had in the last hour; None: this process is younger.

        Answers from before it are forgotten. If the clock is set forward, then back, signatures are valid
        again: the answers to their requests are still there.
        """
        seconds = self._monotonic()
        self._times.append((seconds, self._now()))
        while len(self._times) > 1 and self._times[1][0] <= seconds - _REPLAY_SECONDS:
            self._times.popleft()
        if self._times[0][0] > seconds - _REPLAY_SECONDS:
            return None
        return min(now for _, now in self._times)

    def _delete_composes(self) -> None:
        before = self._now() - timedelta(seconds=self._retention_seconds)
        for compose_id in self._composes.find_ended(before, _BATCH):
            with suppress(Conflict):  # an export or a compose of its image has begun meanwhile
                if self._composes.delete(compose_id):
                    _log.info("deleted compose {id}, whose retention has expired", id=compose_id)

    def _delete_images(self) -> None:
        before = self._now() - timedelta(seconds=self._image_retention_seconds)
        for image_id in self._images.find_imported(before, _BATCH):
            with suppress(Conflict):  # same
                self._images.delete(image_id)
                _log.info("deleted image {id}, whose retention has expired", id=image_id)

    def _delete_objects(self) -> bool:
        """Delete some objects; False: there is none.

        Raises:
            StoreFailed: the store does not answer.
            StoreDenied: it refuses some; the others are deleted.
        """
        keys, deleted, refusal = self._objects.find_discarded(_BATCH), [], None
        try:
            for key in keys:
                try:
                    self._store.delete(key)
                except StoreDenied as error:
                    refusal = error
                    continue
                except (TypeError, ValueError) as error:
                    _log.warn("there is no object to delete: {reason}", reason=str(error))
                deleted.append(key)
        finally:
            are_deleted = self._objects.forget_discarded(deleted)
        if refusal is not None:
            raise refusal
        return are_deleted
