"""The actions of running plans in this service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import IgnitionTooLarge, NotFound, StoreFailed, Unavailable, UnknownBaseImage
from image_service.jobs.artifacts.actions import StepResult
from image_service.jobs.model import (
    ComposePlan,
    ComposeState,
    JobError,
    JobState,
    JobType,
    Step,
    UploadResult,
    UploadTarget,
)
from tests.jobs.database.composing import CIPHER, make_artifact
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from image_service.jobs.artifacts.actions import ServerAction
    from image_service.jobs.engine.engine import PlanActions
    from image_service.jobs.model import Artifact, Compose
    from tests.jobs.dispatch.dispatching import Dispatching

LOCAL, S3 = UploadTarget("local"), UploadTarget("aws.s3")
IMAGE = {"image": "customize/disk.raw"}
UPLOADED = ComposePlan(
    (
        Step("fetch", "fetch-base"),
        Step("customize", JobType.CUSTOMIZE, {"output": "disk.raw"}, {"base": "base"}, ("fetch",)),
        Step("upload", JobType.UPLOAD, {"bucket": "b", "key": "k"}, IMAGE, ("customize",)),
        Step("upload-2", JobType.UPLOAD, {"bucket": "b", "key": "k-2"}, IMAGE, ("upload",)),
        Step("register", "register-image", after=("upload-2",)),
    ),
    "customize/disk.raw",
    "disk.raw",
)


def add_uploaded(dispatching: Dispatching) -> Compose:
    """Add a compose with a local target between two of S3."""
    targets = [UploadResult(target, "pending") for target in (S3, LOCAL, S3)]
    return dispatching.add("org-1", UPLOADED, uploads=tuple(targets))


def found(dispatching: Dispatching, compose: Compose) -> Compose:
    stored = dispatching.rows.composes.find(compose.id)
    assert stored is not None
    return stored


def failing(error: Exception) -> ServerAction:
    async def fail(_compose: Compose, _step: Step) -> StepResult:
        raise error

    return fail


def statuses(uploads: tuple[UploadResult, ...]) -> list[str]:
    return [upload.status for upload in uploads]


def report(dispatching: Dispatching, compose: Compose, artifact: Artifact) -> None:
    """Start the first job of a compose, and report its artifact."""
    rows, job = dispatching.rows, dispatching.job(compose)
    permit = rows.queues.take_permit(job.tenant, 9, datetime.now(UTC))
    assert permit
    assert rows.queues.start(permit, job.id, 1, "w")
    assert rows.jobs.record_report(
        job.id, 1, [CIPHER.tag_artifact(job.tenant, job.id, artifact)], {"provenance": {"toolkit": "1"}}
    )


@ensure_deferred
async def test_a_compose_goes_through_its_states(dispatching: Dispatching) -> None:
    async def register(compose: Compose, step: Step) -> StepResult:
        states.append(found(dispatching, compose).state)
        return StepResult({"registered": step.name})

    actions: PlanActions = dispatching.actions
    compose, states = add_uploaded(dispatching), []
    dispatching.server_actions["register-image"] = register
    await actions.begin(compose.id)
    states.append(found(dispatching, compose).state)
    await actions.queue_job(compose.id, "customize", 1)
    artifact = make_artifact(dispatching.job(compose).id)
    report(dispatching, compose, artifact)
    await actions.finish_job(compose.id, "customize", None)
    job = dispatching.job(compose)
    assert (job.state, job.artifacts) == (JobState.FINISHED, (artifact,))
    await actions.queue_job(compose.id, "upload", 1)
    uploading = found(dispatching, compose)
    assert (uploading.state, statuses(uploading.uploads)) == (
        ComposeState.UPLOADING,
        ["running", "pending", "pending"],
    )
    await actions.finish_job(compose.id, "upload", None)
    await actions.queue_job(compose.id, "upload-2", 1)
    await actions.finish_job(compose.id, "upload-2", None)
    assert await actions.act(compose.id, "register") is None
    await actions.finish(compose.id, None, cancelled=False)
    ended = found(dispatching, compose)
    assert states == [ComposeState.BUILDING, ComposeState.REGISTERING]
    assert (ended.state, ended.image, ended.error) == (ComposeState.SUCCESS, artifact, None)
    assert [upload.location for upload in ended.uploads] == ["s3://b/k", "", "s3://b/k-2"]
    assert statuses(ended.uploads) == ["success"] * 3
    assert ended.provenance == {"customize": {"toolkit": "1"}, "register": {"registered": "register"}}


@ensure_deferred
async def test_each_action_may_be_repeated(dispatching: Dispatching) -> None:
    actions, compose = dispatching.actions, add_uploaded(dispatching)
    for _ in range(2):
        await actions.begin(compose.id)
    for _ in range(2):
        await actions.queue_job(compose.id, "customize", 1)
    report(dispatching, compose, make_artifact(dispatching.job(compose).id))
    for _ in range(2):
        await actions.finish_job(compose.id, "customize", None)
    for error in (None, JobError(10, "late")):
        await actions.finish(compose.id, error, cancelled=False)
    assert found(dispatching, compose).state is ComposeState.SUCCESS


@ensure_deferred
async def test_a_failed_step_fails_the_compose(dispatching: Dispatching) -> None:
    actions, compose = dispatching.actions, add_uploaded(dispatching)
    error = JobError(27, "step upload: its worker has stopped")
    await actions.begin(compose.id)
    await actions.queue_job(compose.id, "upload", 1)
    await actions.finish_job(compose.id, "upload", error)
    await actions.finish(compose.id, error, cancelled=False)
    ended = found(dispatching, compose)
    assert (ended.state, ended.error, ended.image) == (ComposeState.FAILURE, error, None)
    assert statuses(ended.uploads) == ["failure"] * 3
    assert dispatching.job(compose, "upload").error == error


@ensure_deferred
async def test_a_cancelled_compose_has_cancelled_jobs(dispatching: Dispatching) -> None:
    actions, compose = dispatching.actions, add_uploaded(dispatching)
    await actions.queue_job(compose.id, "customize", 1)
    await actions.finish(compose.id, None, cancelled=True)
    assert found(dispatching, compose).state is ComposeState.CANCELLED
    assert dispatching.job(compose).state is JobState.CANCELLED


@pytest.mark.parametrize("error", [UnknownBaseImage("4.16 is gone"), IgnitionTooLarge("9 bytes")], ids=repr)
@ensure_deferred
async def test_permanent_error_fails_the_step(dispatching: Dispatching, error: Exception) -> None:
    dispatching.server_actions["fetch-base"] = failing(error)
    result = await dispatching.actions.act(add_uploaded(dispatching).id, "fetch")
    assert result == JobError(10, f"step fetch: {error}")


@pytest.mark.parametrize("error", [Unavailable("later"), StoreFailed("away")], ids=repr)
@ensure_deferred
async def test_temporary_error_is_raised_for_a_retry(dispatching: Dispatching, error: Exception) -> None:
    dispatching.server_actions["fetch-base"] = failing(error)
    with pytest.raises(type(error)):
        await dispatching.actions.act(add_uploaded(dispatching).id, "fetch")


@ensure_deferred
async def test_the_plan_of_an_ended_compose_ends(dispatching: Dispatching) -> None:
    actions, ended, deleted = dispatching.actions, add_uploaded(dispatching), add_uploaded(dispatching)
    await actions.finish(ended.id, JobError(10, "broken"), cancelled=False)
    dispatching.rows.composes.delete(deleted.id)
    for compose in (ended, deleted):
        for call in (
            actions.begin(compose.id),
            actions.queue_job(compose.id, "customize", 1),
            actions.queue_job(compose.id, "upload", 1),
            actions.act(compose.id, "fetch"),
        ):
            with pytest.raises(NotFound):
                await call
        await actions.finish(compose.id, None, cancelled=False)
    assert found(dispatching, ended).state is ComposeState.FAILURE
