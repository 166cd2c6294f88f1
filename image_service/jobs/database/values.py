"""Converts values of the model to rows, and rows to values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from image_service.jobs.catalog_image import CatalogImage
from image_service.jobs.database.tables import COMPOSES, IMAGES, JOBS, TASKS
from image_service.jobs.model import (
    Artifact,
    Compose,
    ComposeOrigin,
    ComposePlan,
    ComposeState,
    ComposeSummary,
    ImageType,
    Job,
    JobError,
    JobErrorId,
    JobProgress,
    JobState,
    JobSummary,
    JobType,
    Step,
    UploadResult,
    UploadTarget,
)
from image_service.jobs.task_model import ConversionTask, TaskKind

if TYPE_CHECKING:
    from enum import StrEnum

    import sqlalchemy as sa

    from image_service.jobs.model import Json

SUMMARY_COLUMNS = [COMPOSES.c[field.name] for field in attrs.fields(ComposeSummary)]
COMPOSE_COLUMNS = [COMPOSES.c[field.name] for field in attrs.fields(Compose)]
JOB_SUMMARY_COLUMNS = [JOBS.c[field.name] for field in attrs.fields(JobSummary)]
JOB_COLUMNS = [JOBS.c[field.name] for field in attrs.fields(Job)]
IMAGE_COLUMNS = [IMAGES.c[field.name] for field in attrs.fields(CatalogImage)]
DAMAGE = (AttributeError, KeyError, TypeError, ValueError)
"""What values of another form than the service's raise."""
_UNREADABLE = "the row in the database is not as the service has written it"
_UNREADABLE_UPLOADS = (UploadResult(UploadTarget("local"), "failure"),)
TASK_COLUMNS = [TASKS.c[field.name] for field in attrs.fields(ConversionTask)]


def row_of(value: Compose | Job | CatalogImage | ConversionTask) -> dict[str, Any]:
    """Return the columns of a value's row; ``Document`` writes the values in them."""
    return attrs.asdict(value, recurse=False)


def to_compose(row: sa.RowMapping) -> Compose:
    """Return the compose of a row with `COMPOSE_COLUMNS`."""
    image = row["image"] and Artifact(**row["image"])
    return Compose(**{**row, **_listed(row), "plan": _to_plan(row["plan"]), "image": image})


def to_summary(row: sa.RowMapping) -> ComposeSummary:
    """Return the summary of a row with `SUMMARY_COLUMNS`; what cannot be read of it hides no other row."""
    try:
        _check_texts(row, "id", "tenant", "distribution", "architecture")
        summary = ComposeSummary(**{**row, **_listed(row)})
        if summary.origin is ComposeOrigin.COMPOSER and not summary.uploads:
            raise ValueError(_UNREADABLE)
        return summary  # noqa: TRY300 - it is right
    except DAMAGE:
        return ComposeSummary(
            id=str(row["id"]),
            tenant=str(row["tenant"]),
            distribution="",
            architecture="",
            image_type=None,
            state=ComposeState(_known(ComposeState, row["state"], ComposeState.FAILURE)),
            created_at=row["created_at"],
            finished_at=row["finished_at"],
            error=JobError(JobErrorId.BUILD_FAILED, f"{_UNREADABLE}: delete the compose"),
            uploads=_UNREADABLE_UPLOADS,
            origin=ComposeOrigin(_known(ComposeOrigin, row["origin"], ComposeOrigin.COMPOSER)),
        )


def _check_texts(row: sa.RowMapping, *names: str) -> None:
    """Raise TypeError if a column is not text: SQLite stores any value in any column."""
    if not all(isinstance(row[name], str) for name in names):
        raise TypeError(_UNREADABLE)


def _known(kind: type[StrEnum], value: object, otherwise: StrEnum) -> StrEnum:
    return next((member for member in kind if member == value), otherwise)


def _listed(row: sa.RowMapping) -> dict[str, Any]:
    return {
        "image_type": row["image_type"] and ImageType(row["image_type"]),
        "origin": ComposeOrigin(row["origin"]),
        "state": ComposeState(row["state"]),
        "error": row["error"] and JobError(**row["error"]),
        "uploads": to_uploads(row["uploads"]),
    }


def to_uploads(documents: list[Any]) -> tuple[UploadResult, ...]:
    """Return the uploads of a compose; one that has failed, if they cannot be read."""
    try:
        uploads = [
            UploadResult(**{**document, "target": UploadTarget(**document["target"])})
            for document in documents
        ]
    except DAMAGE:
        return _UNREADABLE_UPLOADS
    return tuple(uploads)


def to_job(row: sa.RowMapping) -> Job:
    """Return the job of a row with `JOB_COLUMNS`."""
    artifacts = tuple(Artifact(**artifact) for artifact in row["artifacts"])
    return Job(**{**row, **_shown(row), "artifacts": artifacts})


def to_job_summary(row: sa.RowMapping) -> JobSummary:
    """Return the summary of a row with `JOB_SUMMARY_COLUMNS`; see `to_summary`."""
    try:
        _check_texts(row, "id", "step", "worker")
        return JobSummary(**{**row, **_shown(row)})
    except DAMAGE:
        return JobSummary(
            id=str(row["id"]),
            compose_id=row["compose_id"],
            step="",
            type=JobType(_known(JobType, row["type"], JobType.CUSTOMIZE)),
            state=JobState(_known(JobState, row["state"], JobState.FAILED)),
            error=JobError(JobErrorId.BUILD_FAILED, _UNREADABLE),
        )


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    return {
        "type": JobType(row["type"]),
        "state": JobState(row["state"]),
        "progress": row["progress"] and JobProgress(**row["progress"]),
        "error": row["error"] and JobError(**row["error"]),
    }


def to_image(row: sa.RowMapping) -> CatalogImage:
    """Return the catalog image of a row with `IMAGE_COLUMNS`; see `to_summary`.

    The artifact of one that cannot be read has no tag, so that nothing uses it.
    """
    try:
        _check_texts(
            row, "id", "tenant", "name", "architecture", "format", "source", "description", "platform"
        )
        return CatalogImage(**{**row, "artifact": Artifact(**row["artifact"])})
    except DAMAGE:
        return CatalogImage(
            id=str(row["id"]),
            tenant=str(row["tenant"]),
            name="",
            architecture="",
            format="",
            virtual_size=0,
            artifact=Artifact("", 0, "", ""),
            source=str(row["source"]),
            created_at=row["created_at"],
            description=_UNREADABLE,
        )


def to_task(row: sa.RowMapping) -> ConversionTask:
    """Return the task of a row with `TASK_COLUMNS`."""
    return ConversionTask(**{**row, "kind": TaskKind(row["kind"])})


def _to_plan(document: Json) -> ComposePlan:
    fields: dict[str, Any] = dict(document)
    steps = tuple(Step(**{**step, "after": tuple(step["after"])}) for step in fields.pop("steps"))
    return ComposePlan(steps=steps, **fields)
