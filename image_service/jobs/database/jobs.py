"""The rows of jobs. Every call blocks: not for the reactor's thread.

One attempt at a time does a job. Its number fences it: reports of earlier attempts change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import sqlalchemy as sa

from image_service.jobs.database.repository import Repository
from image_service.jobs.database.statements import (
    discard,
    find_job,
    running_attempt,
    undiscard,
    unfinished_job,
    utc_now,
)
from image_service.jobs.database.tables import ARTIFACTS, JOBS
from image_service.jobs.database.values import JOB_COLUMNS, JOB_SUMMARY_COLUMNS, to_job, to_job_summary
from image_service.jobs.model import JobState, JobType, job_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from image_service.common.database.database import Database
    from image_service.jobs.database.sealing import RowCipher
    from image_service.jobs.model import Artifact, Job, JobError, JobProgress, JobSummary, Json


@attrs.frozen
class JobCount:
    """Jobs of one tenant and type in one state."""

    tenant: str
    type: JobType
    architecture: str
    state: JobState
    count: int


class JobRepository(Repository):
    """Jobs, and the reports of their workers."""

    def __init__(self, database: Database, cipher: RowCipher, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(database, now)
        self._cipher = cipher

    def find(self, job_id: str) -> Job | None:
        """Return a job; None: there is none. Raises RowNotAuthentic."""
        return self._database.transact(lambda connection: find_job(connection, job_id))

    def find_of_compose(self, compose_id: str) -> list[Job]:
        """Return the jobs of a compose, in the order of its plan.

        Raises:
            RowNotAuthentic: a row or an artifact was changed in the database, or is of another job.
        """
        select = sa.select(*JOB_COLUMNS).where(JOBS.c.compose_id == compose_id).order_by(JOBS.c.number)
        rows = self._database.transact(lambda connection: connection.execute(select).mappings().all())
        jobs = [to_job(row) for row in rows]
        for job in jobs:
            for artifact in job.artifacts:
                self._cipher.check_artifact(job.tenant, job_id_of(compose_id, job.step), artifact)
        return jobs

    def summarize(self, compose_ids: Collection[str]) -> Mapping[str, list[JobSummary]]:
        """Return the jobs of composes by the compose's id, in the order of its plan."""
        is_wanted = JOBS.c.compose_id.in_(compose_ids)
        select = sa.select(*JOB_SUMMARY_COLUMNS).where(is_wanted).order_by(JOBS.c.number)
        rows = self._database.transact(lambda connection: connection.execute(select).mappings().all())
        summaries: dict[str, list[JobSummary]] = {compose_id: [] for compose_id in compose_ids}
        for row in rows:
            summaries[row["compose_id"]].append(to_job_summary(row))
        return summaries

    def count(self) -> list[JobCount]:
        """Return how many jobs there are that have not ended, without those of an unknown type."""
        kind = (JOBS.c.tenant, JOBS.c.type, JOBS.c.architecture, JOBS.c.state)
        is_unfinished = JOBS.c.state.in_([JobState.WAITING, JobState.QUEUED, JobState.RUNNING])
        is_known = JOBS.c.type.in_(JobType)
        count = sa.select(*kind, sa.func.count()).where(is_unfinished, is_known).group_by(*kind)
        rows = self._database.transact(lambda connection: connection.execute(count.order_by(*kind)).all())
        return [
            JobCount(tenant, JobType(job_type), architecture, JobState(state), number)
            for tenant, job_type, architecture, state, number in rows
        ]

    def record_progress(self, job_id: str, attempt: int, progress: JobProgress) -> bool:
        """Record the progress of an attempt; False: it is not the latest one, or has ended."""
        return self._update(running_attempt(job_id, attempt).values(progress=progress))

    def record_report(self, job_id: str, attempt: int, artifacts: Sequence[Artifact], result: Json) -> bool:
        """Record the report of an attempt, which becomes the result of the job if the engine accepts it.

        Returns:
            False: the attempt is not the latest one, or has ended.
        """
        values = {"artifacts": list(artifacts), "result": result}
        return self._update(running_attempt(job_id, attempt).values(values))

    def record_stop(self, job_id: str, attempt: int) -> None:
        """Record that the worker of an attempt knows that the job is cancelled, and has stopped or will."""
        is_cancelled = (JOBS.c.attempt == attempt) & (JOBS.c.state == JobState.CANCELLED)
        self._update(sa.update(JOBS).where(JOBS.c.id == job_id, is_cancelled).values(stopped_at=self._now()))

    def finish(self, job_id: str, error: JobError | None = None) -> bool:
        """End a job, once; the artifacts of its latest report are accepted, unless it failed.

        All other artifacts are discarded.

        Returns:
            False: there is none, or it has ended.

        Raises:
            RowNotAuthentic: its report was changed in the database.
        """
        now = self._now()
        state = JobState.FAILED if error else JobState.FINISHED
        end = unfinished_job(job_id).values(state=state, error=error, finished_at=now)

        def work(connection: sa.Connection) -> bool:
            if not connection.execute(end).rowcount:
                return False
            job = None if error else find_job(connection, job_id)
            accepted = tuple(artifact.key for artifact in job.artifacts) if job else ()
            # An upload of the same name may have replaced one that the report names.
            connection.execute(undiscard(accepted))
            discard(self._database, connection, now, ARTIFACTS.c.job_id == job_id, except_keys=accepted)
            if error:
                connection.execute(sa.update(JOBS).where(JOBS.c.id == job_id).values(artifacts=[]))
            return True

        return self._database.transact(work)

    def _update(self, statement: sa.Executable) -> bool:
        return self._database.transact(lambda connection: connection.execute(statement).rowcount > 0)
