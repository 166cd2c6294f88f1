"""The queues of jobs, and the permits to start them. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import sqlalchemy as sa

from image_service.jobs.database.repository import Repository
from image_service.jobs.database.statements import (
    find_job,
    lock_tenant,
    unfinished_job,
    unless_set,
)
from image_service.jobs.database.tables import JOBS, PERMITS, TENANTS
from image_service.jobs.model import JobState, JobType

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from image_service.jobs.model import Job

_LEAST = timedelta(microseconds=1)
_LONGEST = timedelta(minutes=1)  # of a permit; polls take seconds


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


class JobQueues(Repository):
    """The queues to poll in the engine, in a fair order, within the limits of tenants."""

    def mark_queued(self, job_id: str, attempt: int) -> bool:
        """Record that the engine queues an attempt, unless that has started; False: no job, or it has ended.

        The attempt before has failed, or its worker is lost.
        """
        values = {
            "state": JobState.QUEUED,
            "attempt": attempt,  # a late start of an earlier one is refused
            "progress": None,
            "artifacts": [],
            "queued_at": unless_set(JOBS.c.queued_at, self._now()),
        }
        queue = unfinished_job(job_id).where(JOBS.c.attempt < attempt).values(values)
        is_known = sa.select(JOBS.c.id).where(JOBS.c.id == job_id, JOBS.c.finished_at.is_(None))
        return self._database.transact(
            lambda connection: (
                connection.execute(queue).rowcount > 0 or connection.scalar(is_known) is not None
            )
        )

    def find_ready(
        self, tenant: str | None, types: Collection[JobType], architecture: str, max_running: int
    ) -> list[ReadyQueue]:
        """Return queues with jobs.

        Args:
            tenant: None: all; the tenant whose jobs were started least recently comes first.
            max_running: tenants with this number of running jobs and permits are left out.
        """
        count = sa.func.count().label("number")
        oldest = sa.func.min(JOBS.c.queued_at).label("queued_at")
        ready = (
            sa.select(JOBS.c.tenant, JOBS.c.type, count, oldest, TENANTS.c.served_at)
            .outerjoin(TENANTS, TENANTS.c.tenant == JOBS.c.tenant)
            .where(
                JOBS.c.state == JobState.QUEUED,
                JOBS.c.architecture == architecture,
                JOBS.c.type.in_(types),
                *([] if tenant is None else [JOBS.c.tenant == tenant]),
            )
            .group_by(JOBS.c.tenant, JOBS.c.type, TENANTS.c.served_at)
            .order_by(TENANTS.c.served_at.asc().nulls_first(), oldest)
        )
        busy = self._select_busy()

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

    def take_permit(self, tenant: str, max_running: int, expires: datetime) -> str | None:
        """Reserve the start of one job for a poll of the engine; None: the tenant has `max_running`.

        Running jobs, and permits that have not expired, count.
        """
        permit = str(uuid4())
        busy = self._select_busy(tenant)
        expired = sa.delete(PERMITS).where(PERMITS.c.tenant == tenant, ~self._is_valid())

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
        self._database.transact(lambda connection: connection.execute(_permit(permit)).close())

    def start(self, permit: str, job_id: str, attempt: int, worker: str) -> Job | None:
        """Turn a permit into a running job, in one transaction; it is given back if there is none.

        Returns:
            the job with this attempt; None: there is none, it has ended, or a later attempt has started.

        Raises:
            RowNotAuthentic: its row was changed in the database; the permit is not given back.
        """
        now = self._now()
        values = {
            "state": JobState.RUNNING,
            "attempt": attempt,
            "worker": worker,
            "progress": None,
            "artifacts": [],
            "started_at": now,
        }

        def work(connection: sa.Connection) -> Job | None:
            connection.execute(_permit(permit))
            started = unfinished_job(job_id).where(JOBS.c.attempt <= attempt).values(values)
            if not connection.execute(started).rowcount:
                return None
            job = find_job(connection, job_id)
            if job is not None:
                latest = connection.scalar(sa.select(sa.func.max(TENANTS.c.served_at))) or now
                served = sa.update(TENANTS).where(TENANTS.c.tenant == job.tenant)
                # Later than that of all others, also once the clock was set back.
                connection.execute(served.values(served_at=max(now, latest + _LEAST)))
            return job

        return self._database.transact(work)

    def _is_valid(self) -> sa.ColumnElement[bool]:
        """Match permits that have not expired; one that ends much later is of a clock that was set back."""
        now = self._now()
        return PERMITS.c.expires_at.between(now, now + _LONGEST)

    def _select_busy(self, tenant: str | None = None) -> sa.Select[tuple[str, int]]:
        """Select tenants, and how many running jobs and permits each has, in a row for both."""
        running = (JOBS.c.state == JobState.RUNNING,)
        valid = (self._is_valid(),)
        counts = []
        for table, conditions in ((JOBS, running), (PERMITS, valid)):
            count = sa.select(table.c.tenant).where(*conditions)
            counts.append(count if tenant is None else count.where(table.c.tenant == tenant))
        both = sa.union_all(*counts).subquery()
        return sa.select(both.c.tenant, sa.func.count().label("number")).group_by(both.c.tenant)


def _permit(permit: str) -> sa.Delete:
    return sa.delete(PERMITS).where(PERMITS.c.id == permit)
