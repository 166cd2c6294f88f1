"""The rows of jobs. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from image_service.database.database import Database
    from image_service.jobs.model import Artifact, Job, JobError, JobProgress, JobState, JobType, Json


@attrs.frozen
class ReadyQueue:
    """Jobs of one kind that a worker could start now.

    Args:
        queued_at: of the oldest.
        served_at: when a job of this tenant was last started; None: never.
    """

    tenant: str
    type: JobType
    architecture: str
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
    """Jobs, the permits to start them, and their artifacts.

    Args:
        database: see ``open_database``.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        raise NotImplementedError

    def find(self, job_id: str) -> Job | None:
        """Return a job; None: there is none."""
        raise NotImplementedError

    def find_of_compose(self, compose_id: str) -> list[Job]:
        """Return the jobs of a compose, in the order of its plan."""
        raise NotImplementedError

    def mark_queued(self, job_id: str) -> bool:
        """Record that the engine queues a waiting job; False: there is none, or it has ended."""
        raise NotImplementedError

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
            tenant: None: of all; the one whose jobs were started least recently comes first.
            types: that a worker does.
            architecture: of the worker.
            lost_before: a running job is lost if its last heartbeat is older.
            max_running: tenants with so many running jobs and permits are left out.
        """
        raise NotImplementedError

    def take_permit(
        self, tenant: str, max_running: int, lost_before: datetime, expires: datetime
    ) -> str | None:
        """Reserve the start of one job for a poll of the engine; None: the tenant has `max_running`.

        Running jobs with a heartbeat since `lost_before`, and permits that have not expired, count.
        """
        raise NotImplementedError

    def release_permit(self, permit: str) -> None:
        """Give a permit back: the poll brought no job."""
        raise NotImplementedError

    def start(self, permit: str, job_id: str, attempt: int, worker: str) -> Job | None:
        """Turn a permit into a running job, in one transaction; it is given back in any case.

        Returns:
            the job with this attempt; None: there is none, it has ended, or a later attempt has started.
        """
        raise NotImplementedError

    def record_heartbeat(self, job_id: str, attempt: int, progress: JobProgress | None = None) -> bool:
        """Record that an attempt goes on; False: it is not the latest one, or has ended."""
        raise NotImplementedError

    def requeue(self, job_id: str, attempt: int) -> None:
        """Record that an attempt has failed, and the engine will queue the next one."""
        raise NotImplementedError

    def add_artifact(self, job_id: str, attempt: int, artifact: Artifact) -> bool:
        """Record an uploaded file of an attempt, which is not accepted yet.

        Returns:
            False: the job has ended, or there is none; the object is discarded.
        """
        raise NotImplementedError

    def find_artifacts(self, job_id: str, attempt: int) -> list[Artifact]:
        """Return the uploaded files of an attempt."""
        raise NotImplementedError

    def finish(
        self,
        job_id: str,
        *,
        artifacts: Sequence[Artifact] = (),
        result: Json | None = None,
        error: JobError | None = None,
        cancelled: bool = False,
    ) -> bool:
        """End a job, once, with its accepted artifacts; the others are discarded.

        Returns:
            False: there is none, or it has ended.
        """
        raise NotImplementedError

    def count(self) -> list[JobCount]:
        """Return how many jobs there are."""
        raise NotImplementedError

    def find_discarded(self, limit: int) -> list[str]:
        """Return keys of objects that nothing refers to any more, to be deleted from the object store."""
        raise NotImplementedError

    def forget_discarded(self, keys: Collection[str]) -> None:
        """Record that objects were deleted."""
        raise NotImplementedError
