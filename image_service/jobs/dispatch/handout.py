"""Replies to workers: an attempt of a job, its token and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.core.errors import ImageServiceError, StoreFailed, Unavailable
from image_service.jobs.dispatch.tokens import JobToken
from image_service.jobs.model import Job, JobError, JobErrorId, Json

if TYPE_CHECKING:
    from image_service.jobs.artifacts.contents import Contents
    from image_service.jobs.dispatch.rows import DispatchRows
    from image_service.jobs.dispatch.tokens import JobTokens
    from image_service.jobs.engine.engine import Engine, Task
    from image_service.jobs.model import Compose


class JobObserver(Protocol):
    """Records jobs, in the reactor's thread."""

    def record_job_start(self, job: Job) -> None:
        """Record that a worker got an attempt of a job."""

    def record_job_end(self, job: Job, error: JobError | None) -> None:
        """Record that a job has ended; None: it has succeeded."""


@attrs.frozen
class HandedJob:
    """An attempt of a job, for a worker.

    Args:
        token: path segment.
        arguments: of the job, with sizes and digests of its inputs.
    """

    job: Job
    token: str = attrs.field(repr=False)
    arguments: Json = attrs.field(repr=False)
    dynamic_arguments: tuple[Json, ...] = attrs.field(repr=False)


@attrs.frozen(eq=False)
class JobHandout:
    """Prepares attempts for workers.

    Args:
        engine: gets the errors of jobs whose inputs are not available.
        contents: of inputs, for their sizes and digests.
    """

    _rows: DispatchRows
    _engine: Engine
    _contents: Contents
    _tokens: JobTokens
    _observer: JobObserver

    async def prepare(self, job: Job, task: Task) -> HandedJob | None:
        """Return a started attempt; None: it was ended, because its inputs or its compose do not exist."""
        try:
            compose = await self._rows.call(self._rows.composes.find, job.compose_id, job.tenant)
            if compose is None:
                await self.refuse(task)
                return None
            step = compose.step_of(job.id)
            inputs = {name: await self._describe(compose, source) for name, source in step.inputs.items()}
            jobs = await self._rows.call(self._rows.jobs.find_of_compose, job.compose_id)
        except StoreFailed:
            raise
        except ImageServiceError as error:
            reason = f"step {job.step}: an input cannot be read: {error.detail}"
            await self._engine.complete(task.token, JobError(JobErrorId.BUILD_FAILED, reason))
            return None
        self._observer.record_job_start(job)
        return HandedJob(
            job,
            self._tokens.write(JobToken(job.id, task.attempt, job.tenant, task.token)),
            {**step.arguments, "inputs": inputs},
            tuple(each.result for each in jobs if each.step in step.after),
        )

    async def refuse(self, task: Task, reason: str = "") -> None:
        """End an attempt whose job has ended, or has no row: otherwise it would block its queue."""
        reason = reason or f"compose {task.compose_id} is not there, or has ended"
        await self._engine.complete(task.token, JobError(JobErrorId.BUILD_FAILED, reason))

    async def renew(self, handed: HandedJob) -> HandedJob | None:
        """Return an attempt that no worker has got yet; None: it has ended meanwhile."""
        is_present = await self._engine.heartbeat(self._tokens.read(handed.token).engine_token)
        return handed if is_present else None

    async def _describe(self, compose: Compose, source: str) -> Json:
        """Return size and digest of an input; null while they are not known."""
        try:
            content = await self._contents.open_input(compose, source)
        except (Unavailable, StoreFailed):
            return {"size": None, "sha256": None}
        return {"size": content.size, "sha256": content.sha256}
