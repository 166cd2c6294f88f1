"""The interface for recording starts and ends of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from image_service.jobs.model import Job, JobError


class JobObserver(Protocol):
    """Records jobs, in the reactor's thread."""

    def record_job_start(self, job: Job) -> None:
        """Record that a worker got an attempt of a job."""

    def record_job_end(self, job: Job, error: JobError | None) -> None:
        """Record that a job has ended; None: it has succeeded."""
