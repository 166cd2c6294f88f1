"""The rows of jobs. Every call blocks: not for the reactor's thread.

One attempt at a time does a job. Its number fences it: reports of earlier attempts change nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import sqlalchemy as sa

from image_service.jobs.metadata.statements import discard, lock_tenant, unless_set, utc_now
from image_service.jobs.metadata.tables import ARTIFACTS, DISCARDED, JOBS, PERMITS, TENANTS
from image_service.jobs.metadata.values import JOB_COLUMNS, to_job
from image_service.jobs.model import Artifact, JobState, JobType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from image_service.common.database.database import Database
    from image_service.jobs.model import Job, JobError, JobProgress, Json

ABANDONED = timedelta(days=1)
"""Until the deletion of an object that did not become an artifact; uploads end before."""
_UNFINISHED = JOBS.c.finished_at.is_(None)
_SELECT = sa.select(*JOB_COLUMNS)


@attrs.frozen
class ReadyQueue:
    """Jobs of one kind that a worker could start now.

    Args:
        count: of these jobs.
        queued_at: of the oldest.
        served_at: when a job of this tenant was last started; None: never.
    """

    tenant: str
    type: JobType
    architecture: str
    count: int
    queued_at: datetime
    served_at: datetime | None


@attrs.frozen
class JobCount:
    """Jobs of one tenant and type in one state."""

    tenant: str
    type: JobType
    architecture: str
    state: JobState
    count: int


class JobRepository:
    """Jobs, the permits to start them, and the objects that they store.

    Args:
        database: see ``open_database``.
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def find(self, job_id: str) -> Job | None:
        """Return a job; None: there is none."""
        return self._database.transact(lambda connection: _find(connection, job_id))

    def find_of_compose(self, compose_id: str) -> list[Job]:
        """Return the jobs of a compose, in the order of its plan."""
        select = _SELECT.where(JOBS.c.compose_id == compose_id).order_by(JOBS.c.number)
        rows = self._database.transact(lambda connection: connection.execute(select).mappings().all())
        return [to_job(row) for row in rows]

    def count(self) -> list[JobCount]:
        """Return how many jobs there are that have not ended."""
        kind = (JOBS.c.tenant, JOBS.c.type, JOBS.c.architecture, JOBS.c.state)
        is_unfinished = JOBS.c.state.in_([JobState.WAITING, JobState.QUEUED, JobState.RUNNING])
        count = sa.select(*kind, sa.func.count()).where(is_unfinished).group_by(*kind).order_by(*kind)
        rows = self._database.transact(lambda connection: connection.execute(count).all())
        return [
            JobCount(tenant, JobType(job_type), architecture, JobState(state), number)
            for tenant, job_type, architecture, state, number in rows
        ]

    # Queues and permits.

    def mark_queued(self, job_id: str) -> bool:
        """Record that the engine queues a waiting job; False: there is none, or it has ended."""
        is_waiting = JOBS.c.state == JobState.WAITING
        values = {
            "state": sa.case((is_waiting, JobState.QUEUED), else_=JOBS.c.state),
            "queued_at": unless_set(JOBS.c.queued_at, self._now()),
        }
        return self._update(_of(job_id).values(values))

    def find_ready(
        self,
        tenant: str | None,
        types: Collection[JobType],
        architecture: str,
        lost_before: datetime,
        max_running: int,
    ) -> list[ReadyQueue]:
        """Return queues with jobs that are queued, or run without a heartbeat since `lost_before`.

        Args:
            tenant: None: all; the tenant whose jobs were started least recently comes first.
            types: that a worker does.
            architecture: of the worker.
            lost_before: a running job is lost if its last heartbeat is older.
            max_running: tenants with this number of running jobs and permits are left out.
        """
        is_lost = (JOBS.c.state == JobState.RUNNING) & (JOBS.c.seen_at < lost_before)
        count = sa.func.count().label("number")
        oldest = sa.func.min(JOBS.c.queued_at).label("queued_at")
        ready = (
            sa.select(JOBS.c.tenant, JOBS.c.type, count, oldest, TENANTS.c.served_at)
            .outerjoin(TENANTS, TENANTS.c.tenant == JOBS.c.tenant)
            .where(
                (JOBS.c.state == JobState.QUEUED) | is_lost,
                JOBS.c.architecture == architecture,
                JOBS.c.type.in_(types),
                *([] if tenant is None else [JOBS.c.tenant == tenant]),
            )
            .group_by(JOBS.c.tenant, JOBS.c.type, TENANTS.c.served_at)
            .order_by(TENANTS.c.served_at.asc().nulls_first(), oldest)
        )
        busy = self._select_busy(lost_before)

        def work(connection: sa.Connection) -> list[ReadyQueue]:
            running = {row.tenant: row.number for row in connection.execute(busy)}
            return [
                ReadyQueue(
                    row.tenant, JobType(row.type), architecture, row.number, row.queued_at, row.served_at
                )
                for row in connection.execute(ready)
                if running.get(row.tenant, 0) < max_running
            ]

        return self._database.transact(work)

    def take_permit(
        self, tenant: str, max_running: int, lost_before: datetime, expires: datetime
    ) -> str | None:
        """Reserve the start of one job for a poll of the engine; None: the tenant has `max_running`.

        Running jobs with a heartbeat since `lost_before`, and permits that have not expired, count.
        """
        permit = str(uuid4())
        busy = self._select_busy(lost_before, tenant)
        expired = sa.delete(PERMITS).where(PERMITS.c.tenant == tenant, PERMITS.c.expires_at < self._now())

        def work(connection: sa.Connection) -> str | None:
            lock_tenant(self._database, connection, tenant)
            connection.execute(expired)
            if sum(row.number for row in connection.execute(busy)) >= max_running:
                return None
            row = {"id": permit, "tenant": tenant, "expires_at": expires}
            connection.execute(sa.insert(PERMITS), row)
            return permit

        return self._database.transact(work)

    def release_permit(self, permit: str) -> None:
        """Give a permit back: the poll brought no job."""
        self._update(_permit(permit))

    def start(self, permit: str, job_id: str, attempt: int, worker: str) -> Job | None:
        """Turn a permit into a running job, in one transaction; it is given back in any case.

        Returns:
            the job with this attempt; None: there is none, it has ended, or a later attempt has started.
        """
        now = self._now()
        values = {
            "state": JobState.RUNNING,
            "attempt": attempt,
            "worker": worker,
            "progress": None,
            "started_at": now,
            "seen_at": now,
        }

        def work(connection: sa.Connection) -> Job | None:
            connection.execute(_permit(permit))
            started = _of(job_id).where(JOBS.c.attempt <= attempt).values(values)
            if not connection.execute(started).rowcount:
                return None
            job = _find(connection, job_id)
            if job is not None:
                served = sa.update(TENANTS).where(TENANTS.c.tenant == job.tenant)
                connection.execute(served.values(served_at=now))
            return job

        return self._database.transact(work)

    # Attempts.

    def record_heartbeat(self, job_id: str, attempt: int, progress: JobProgress | None = None) -> bool:
        """Record a heartbeat of an attempt; False: it is not the latest one, or has ended."""
        values: dict[str, object] = {"seen_at": self._now()}
        if progress is not None:
            values["progress"] = progress
        return self._update(_running(job_id, attempt).values(values))

    def record_stop(self, job_id: str, attempt: int) -> None:
        """Record that the worker of an attempt knows that the job is cancelled, and has stopped or will."""
        is_cancelled = (JOBS.c.attempt == attempt) & (JOBS.c.state == JobState.CANCELLED)
        update = sa.update(JOBS).where(JOBS.c.id == job_id, is_cancelled).values(seen_at=self._now())
        self._update(update)

    def record_failure(self, job_id: str, attempt: int, result: Json) -> None:
        """Record the report of a failed attempt, such as its log, which the engine does not keep."""
        self._update(_running(job_id, attempt).values(result=result))

    def requeue(self, job_id: str, attempt: int) -> None:
        """Record that an attempt has failed, and the engine will queue the next one."""
        self._update(_running(job_id, attempt).values(state=JobState.QUEUED, progress=None))

    def finish(
        self,
        job_id: str,
        *,
        artifacts: Sequence[Artifact] = (),
        result: Json | None = None,
        error: JobError | None = None,
    ) -> bool:
        """End a job, once, with its accepted artifacts; the others are discarded.

        Without a result, the row keeps that of `record_failure`.

        Returns:
            False: there is none, or it has ended.
        """
        now = self._now()
        values = {
            "state": JobState.FAILED if error else JobState.FINISHED,
            "artifacts": list(artifacts),
            "error": error,
            "finished_at": now,
            **({} if result is None else {"result": result}),
        }
        accepted = tuple(artifact.key for artifact in artifacts)

        def work(connection: sa.Connection) -> bool:
            if not connection.execute(_of(job_id).values(values)).rowcount:
                return False
            # An upload of the same name may have replaced one that the engine had accepted.
            connection.execute(_not_discarded(accepted))
            discard(self._database, connection, now, ARTIFACTS.c.job_id == job_id, except_keys=accepted)
            return True

        return self._database.transact(work)

    # Objects.

    def announce_object(self, key: str) -> None:
        """Record, before an object is stored, that it is to be deleted unless it becomes an artifact."""
        insert = self._database.insert(DISCARDED).values(key=key, after=self._now() + ABANDONED)
        self._update(insert.on_conflict_do_nothing())

    def add_artifact(self, job_id: str, attempt: int, artifact: Artifact) -> bool:
        """Record an uploaded file of an attempt, which is not accepted yet.

        Args:
            job_id: of the job.
            attempt: of it.
            artifact: replaces one of its name; its key is one that no upload before has used.

        Returns:
            False: the attempt is not the latest one, or has ended; the object is discarded.
        """
        now = self._now()
        row = {"job_id": job_id, "attempt": attempt, **attrs.asdict(artifact)}
        of_its_name = sa.and_(
            ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.attempt == attempt, ARTIFACTS.c.name == artifact.name
        )

        def work(connection: sa.Connection) -> bool:
            connection.execute(_not_discarded([artifact.key]))
            if connection.execute(_running(job_id, attempt).values(seen_at=now)).rowcount:
                discard(self._database, connection, now, of_its_name)
                connection.execute(sa.insert(ARTIFACTS), row)
                return True
            connection.execute(sa.insert(DISCARDED), {"key": artifact.key, "after": now})
            return False

        return self._database.transact(work)

    def find_artifacts(self, job_id: str, attempt: int) -> list[Artifact]:
        """Return the uploaded files of an attempt."""
        columns = [ARTIFACTS.c[field.name] for field in attrs.fields(Artifact)]
        select = sa.select(*columns).where(ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.attempt == attempt)
        rows = self._database.transact(
            lambda connection: connection.execute(select.order_by(ARTIFACTS.c.name)).all()
        )
        return [Artifact(*row) for row in rows]

    def find_discarded(self, limit: int) -> list[str]:
        """Return keys of objects that nothing refers to any more, to be deleted from the object store."""
        select = sa.select(DISCARDED.c.key).where(DISCARDED.c.after <= self._now()).limit(limit)
        return list(self._database.transact(lambda connection: connection.scalars(select).all()))

    def forget_discarded(self, keys: Collection[str]) -> None:
        """Record that objects were deleted."""
        self._update(_not_discarded(keys))

    def _select_busy(self, lost_before: datetime, tenant: str | None = None) -> sa.Select[tuple[str, int]]:
        """Select tenants, and how many running jobs and permits each has, in a row for both."""
        running = (JOBS.c.state == JobState.RUNNING, JOBS.c.seen_at >= lost_before)
        valid = (PERMITS.c.expires_at >= self._now(),)
        counts = []
        for table, conditions in ((JOBS, running), (PERMITS, valid)):
            count = sa.select(table.c.tenant).where(*conditions)
            counts.append(count if tenant is None else count.where(table.c.tenant == tenant))
        both = sa.union_all(*counts).subquery()
        return sa.select(both.c.tenant, sa.func.count().label("number")).group_by(both.c.tenant)

    def _update(self, statement: sa.Executable) -> bool:
        return self._database.transact(lambda connection: connection.execute(statement).rowcount > 0)


def _of(job_id: str) -> sa.Update:
    """Update a job that has not ended."""
    return sa.update(JOBS).where(JOBS.c.id == job_id, _UNFINISHED)


def _running(job_id: str, attempt: int) -> sa.Update:
    """Update a job that this attempt does."""
    is_latest = (JOBS.c.attempt == attempt) & (JOBS.c.state == JobState.RUNNING)
    return _of(job_id).where(is_latest)


def _permit(permit: str) -> sa.Delete:
    return sa.delete(PERMITS).where(PERMITS.c.id == permit)


def _not_discarded(keys: Collection[str]) -> sa.Delete:
    return sa.delete(DISCARDED).where(DISCARDED.c.key.in_(keys))


def _find(connection: sa.Connection, job_id: str) -> Job | None:
    row = connection.execute(_SELECT.where(JOBS.c.id == job_id)).mappings().first()
    return None if row is None else to_job(row)
