"""Converts values of the model to rows, and rows to values.

A row may be damaged: SQLite stores any value in any column, and a document may have any JSON. A compose or
a job that is to be worked on raises `RowNotAuthentic` then; lists show the row by its id.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from image_service.core.errors import RowNotAuthentic
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
    from collections.abc import Mapping

    import sqlalchemy as sa

SUMMARY_COLUMNS = [COMPOSES.c[field.name] for field in attrs.fields(ComposeSummary)]
COMPOSE_COLUMNS = [COMPOSES.c[field.name] for field in attrs.fields(Compose)]
JOB_SUMMARY_COLUMNS = [JOBS.c[field.name] for field in attrs.fields(JobSummary)]
JOB_COLUMNS = [JOBS.c[field.name] for field in attrs.fields(Job)]
IMAGE_COLUMNS = [IMAGES.c[field.name] for field in attrs.fields(CatalogImage)]
DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What values of another form than the service's raise."""
UNREADABLE = "the row in the database is not as the service has written it"
_UNREADABLE_UPLOADS = (UploadResult(UploadTarget("local"), "failure"),)
_TYPES: dict[str, type] = {"bool": bool, "int": int, "str": str, "Json": dict}
"""Of attributes, by their annotations."""
_T = TypeVar("_T", bound=attrs.AttrsInstance)
_E = TypeVar("_E", bound=StrEnum)
TASK_COLUMNS = [TASKS.c[field.name] for field in attrs.fields(ConversionTask)]


def row_of(value: Compose | Job | CatalogImage | ConversionTask) -> dict[str, Any]:
    """Return the columns of a value's row; ``Document`` writes the values in them."""
    return attrs.asdict(value, recurse=False)


def to_compose(row: sa.RowMapping) -> Compose:
    """Return the compose of a row with `COMPOSE_COLUMNS`; raises RowNotAuthentic."""
    try:
        listed = _listed(row)
        if listed["uploads"] is _UNREADABLE_UPLOADS:
            raise ValueError(UNREADABLE)
        plan, image = _to_plan(row["plan"]), _optional(Artifact, row["image"])
        return _make(Compose, {**row, **listed, "plan": plan, "image": image})
    except DAMAGE:
        raise RowNotAuthentic(f"compose {row['id']}: {UNREADABLE}") from None


def to_shown_compose(row: sa.RowMapping) -> Compose:
    """Return the compose of a row with `COMPOSE_COLUMNS`; an unreadable one has a plan without steps."""
    try:
        return to_compose(row)
    except RowNotAuthentic:
        summary = attrs.asdict(to_summary(row), recurse=False)
        return Compose(**summary, request={}, plan=ComposePlan((), None, ""))


def to_summary(row: sa.RowMapping) -> ComposeSummary:
    """Return the summary of a row with `SUMMARY_COLUMNS`; one that cannot be read says so."""
    try:
        summary = _make(ComposeSummary, {**row, **_listed(row)})
        if summary.origin is ComposeOrigin.COMPOSER and not summary.uploads:
            raise ValueError(UNREADABLE)
        return summary  # noqa: TRY300 - it is right
    except DAMAGE:
        return ComposeSummary(
            id=str(row["id"]),
            tenant=str(row["tenant"]),
            distribution="",
            architecture="",
            image_type=None,
            state=_known(row["state"], ComposeState.FAILURE),
            created_at=row["created_at"],
            finished_at=row["finished_at"],
            error=JobError(JobErrorId.BUILD_FAILED, f"{UNREADABLE}: delete the compose"),
            uploads=_UNREADABLE_UPLOADS,
            origin=_known(row["origin"], ComposeOrigin.COMPOSER),
        )


def _listed(row: sa.RowMapping) -> dict[str, Any]:
    return {
        "image_type": row["image_type"] and ImageType(row["image_type"]),
        "origin": ComposeOrigin(row["origin"]),
        "state": ComposeState(row["state"]),
        "error": _optional(JobError, row["error"]),
        "uploads": to_uploads(row["uploads"]),
    }


def to_uploads(documents: list[Any]) -> tuple[UploadResult, ...]:
    """Return the uploads of a compose; one that has failed, if they cannot be read."""
    try:
        uploads = [
            _make(UploadResult, {**document, "target": _make(UploadTarget, document["target"])})
            for document in documents
        ]
    except DAMAGE:
        return _UNREADABLE_UPLOADS
    return tuple(uploads)


def to_job(row: sa.RowMapping) -> Job:
    """Return the job of a row with `JOB_COLUMNS`; raises RowNotAuthentic."""
    try:
        artifacts = tuple(_make(Artifact, artifact) for artifact in row["artifacts"])
        return _make(Job, {**row, **_shown(row), "artifacts": artifacts})
    except DAMAGE:
        raise RowNotAuthentic(f"job {row['id']}: {UNREADABLE}") from None


def to_job_summary(row: sa.RowMapping) -> JobSummary:
    """Return the summary of a row with `JOB_SUMMARY_COLUMNS`; see `to_summary`."""
    try:
        return _make(JobSummary, {**row, **_shown(row)})
    except DAMAGE:
        return JobSummary(
            id=str(row["id"]),
            compose_id=row["compose_id"],
            step="",
            type=_known(row["type"], JobType.CUSTOMIZE),
            state=_known(row["state"], JobState.FAILED),
            error=JobError(JobErrorId.BUILD_FAILED, UNREADABLE),
        )


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    return {
        "type": JobType(row["type"]),
        "state": JobState(row["state"]),
        "progress": _optional(JobProgress, row["progress"]),
        "error": _optional(JobError, row["error"]),
    }


def to_image(row: sa.RowMapping) -> CatalogImage:
    """Return the catalog image of a row with `IMAGE_COLUMNS`; see `to_summary`.

    The artifact of one that cannot be read has no tag, so that nothing uses it.
    """
    try:
        return _make(CatalogImage, {**row, "artifact": _make(Artifact, row["artifact"])})
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
            description=UNREADABLE,
        )


def to_task(row: sa.RowMapping) -> ConversionTask:
    """Return the task of a row with `TASK_COLUMNS`; one that cannot be read has no request and no tags."""
    kind = TaskKind(row["kind"])
    try:
        if not all(isinstance(value, str) for value in row["tags"].values()):
            raise TypeError(UNREADABLE)
        return _make(ConversionTask, {**row, "kind": kind})
    except DAMAGE:
        return ConversionTask(
            id=str(row["id"]),
            compose_id=row["compose_id"],
            tenant=str(row["tenant"]),
            kind=kind,
            request={},
            tags={},
            volume_bytes=0,
            created_at=row["created_at"],
            expires_at=row["expires_at"],
        )


def _to_plan(document: Mapping[str, Any]) -> ComposePlan:
    steps = tuple(_make(Step, {**step, "after": tuple(step["after"])}) for step in document["steps"])
    return _make(ComposePlan, {**document, "steps": steps})


def _optional(kind: type[_T], document: Mapping[str, Any] | None) -> _T | None:
    return None if document is None else _make(kind, document)


def _make(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Return a value of the model; raises one of `DAMAGE` if an attribute has another type than there."""
    for name, types in _types_of(kind).items():
        if name in values and not isinstance(values[name], types):
            raise TypeError(UNREADABLE)
    return kind(**values)


@cache
def _types_of(kind: type[attrs.AttrsInstance]) -> dict[str, tuple[type, ...]]:
    """Return the types of the attributes that have plain ones; None is `type(None)`."""
    names = {field.name: str(field.type).split(" | ") for field in attrs.fields(kind)}
    types = {**_TYPES, "None": type(None)}
    return {
        name: tuple(types[each] for each in of_name)
        for name, of_name in names.items()
        if types.keys() >= set(of_name)
    }


def _known(value: object, otherwise: _E) -> _E:
    """Return the member of an enumeration that equals a value, or else another one."""
    return next((member for member in type(otherwise) if member == value), otherwise)
