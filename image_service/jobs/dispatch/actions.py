"""The actions of running plans in this service: changes of rows, and the steps of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.common.registry.references import DIGEST
from image_service.core.errors import ImageServiceError, NotFound, RowNotAuthentic, StoreFailed, Unavailable
from image_service.jobs.model import (
    ComposeState,
    JobError,
    JobErrorId,
    JobType,
    UploadResult,
    job_id_of,
)
from image_service.jobs.plans.plan import LOCAL, REGISTER_IMAGE, find_artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.jobs.artifacts.actions import ServerAction
    from image_service.jobs.dispatch.handout import JobObserver
    from image_service.jobs.dispatch.rows import DispatchRows
    from image_service.jobs.model import Artifact, Compose, Job, Step

_log = Logger()


@attrs.frozen(eq=False)
class JobPlanActions:
    """The `PlanActions` of this service.

    Args:
        server_actions: by the actions of steps that are not jobs.
    """

    _rows: DispatchRows
    _server_actions: Mapping[str, ServerAction]
    _wake: Callable[[], None]
    _observer: JobObserver

    async def begin(self, compose_id: str) -> None:
        """Record that the plan runs."""
        if not await self._rows.call(self._rows.composes.begin, compose_id):
            raise _gone(compose_id)

    async def queue_job(self, compose_id: str, step: str, attempt: int) -> None:
        """Record that an attempt of a job is queued, before the engine queues it; wake polls."""
        job = await self._find_job(compose_id, step)
        if job.type is JobType.UPLOAD:
            await self._set_state(compose_id, ComposeState.UPLOADING)
            await self._set_upload(compose_id, step, "running")
        if not await self._rows.call(self._rows.queues.mark_queued, job.id, attempt):
            raise NotFound(f"job {job.id} has ended")
        self._wake()

    async def finish_job(self, compose_id: str, step: str, error: JobError | None) -> None:
        """Record how a job ended."""
        job = await self._find_job(compose_id, step)
        if await self._rows.call(self._rows.jobs.finish, job.id, error):
            self._observer.record_job_end(job, error)
            self._wake()  # the tenant may have been at its limit
        if job.type is JobType.UPLOAD:
            # Not the location that its worker names: the URL of this one is signed with our credentials.
            arguments = (await self._find_compose(compose_id)).step_of(job.id).arguments
            upload = ("success", _location_of(arguments), _digest_of(job.result))
            await self._set_upload(compose_id, step, *(upload if error is None else ("failure",)))

    async def act(self, compose_id: str, step: str) -> JobError | None:
        """Carry out a step of this service."""
        compose = await self._find_compose(compose_id)
        wanted = _find_step(compose, step)
        if wanted.action == REGISTER_IMAGE:
            await self._set_state(compose_id, ComposeState.REGISTERING)
        try:
            result = await self._server_actions[wanted.action](compose, wanted)
        except (Unavailable, StoreFailed):
            raise
        except ImageServiceError as error:
            return JobError(JobErrorId.BUILD_FAILED, f"step {step}: {error.detail}")
        if result.provenance:
            provenance = {**compose.provenance, step: result.provenance}
            await self._rows.call(self._rows.composes.set_provenance, compose_id, provenance)
        return result.error

    async def finish(self, compose_id: str, error: JobError | None, *, cancelled: bool) -> None:
        """Record how the compose ended."""
        try:
            await self._finish(compose_id, error, cancelled=cancelled)
        except RowNotAuthentic as found:
            unauthentic = JobError(JobErrorId.BUILD_FAILED, found.detail)
            finish = self._rows.composes.finish
            await self._rows.call(finish, compose_id, ComposeState.FAILURE, error=unauthentic)
            _log.error("compose {compose} has ended: {reason}", compose=compose_id, reason=found.detail)

    async def _finish(self, compose_id: str, error: JobError | None, *, cancelled: bool) -> None:
        compose = await self._rows.call(self._rows.composes.find, compose_id)
        if compose is None or compose.state.is_final:
            return
        jobs = await self._rows.call(self._rows.jobs.find_of_compose, compose_id)
        succeeded = error is None and not cancelled
        state = ComposeState.SUCCESS if succeeded else ComposeState.FAILURE
        await self._rows.call(
            self._rows.composes.finish,
            compose_id,
            ComposeState.CANCELLED if cancelled else state,
            error=error,
            image=_find_image(compose, jobs) if succeeded else None,
            provenance={
                **compose.provenance,
                **{job.step: job.result["provenance"] for job in jobs if "provenance" in job.result},
            },
        )
        _log.info("compose {compose} has ended: {state}", compose=compose_id, state=state)

    async def _find_compose(self, compose_id: str) -> Compose:
        compose = await self._rows.call(self._rows.composes.find, compose_id)
        if compose is None or compose.state.is_final:
            raise _gone(compose_id)
        return compose

    async def _find_job(self, compose_id: str, step: str) -> Job:
        job = await self._rows.call(self._rows.jobs.find, job_id_of(compose_id, step))
        if job is None:
            raise NotFound(f"compose {compose_id} has no job for its step {step}")
        return job

    async def _set_state(self, compose_id: str, state: ComposeState) -> None:
        if not await self._rows.call(self._rows.composes.set_state, compose_id, state):
            raise _gone(compose_id)

    async def _set_upload(
        self, compose_id: str, step: str, status: str, location: str = "", digest: str = ""
    ) -> None:
        """Set the state of the upload of a step: the steps are in the order of their targets."""
        compose = await self._find_compose(compose_id)
        steps = [each.name for each in compose.plan.steps if each.action == JobType.UPLOAD]
        numbers = [number for number, each in enumerate(compose.uploads) if each.target.type != LOCAL]
        number = numbers[steps.index(step)]
        upload = UploadResult(compose.uploads[number].target, status, location, digest)
        await self._rows.call(self._rows.composes.set_upload, compose, number, upload)


def _location_of(arguments: Mapping[str, object]) -> str:
    """Return where an upload puts its image."""
    return str(arguments.get("reference") or "s3://{bucket}/{key}".format_map(arguments))


def _digest_of(result: Mapping[str, object]) -> str:
    """Return the digest at the end of the location that a worker names; "" if it has none."""
    found = DIGEST.fullmatch(str(result.get("location", "")).rpartition("@")[2])
    return found[0] if found else ""


def _gone(compose_id: str) -> NotFound:
    return NotFound(f"compose {compose_id} is not there, or has ended")


def _find_step(compose: Compose, name: str) -> Step:
    return next(step for step in compose.plan.steps if step.name == name)


def _find_image(compose: Compose, jobs: list[Job]) -> Artifact | None:
    """Return the artifact that is the finished image; None: it is composed while it is read."""
    if compose.plan.result is None:
        return None
    return find_artifact(jobs, compose.plan.result)
