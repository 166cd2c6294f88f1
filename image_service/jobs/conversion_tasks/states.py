"""The state of a task as clients of EC2's API see it. Pure.

EC2 has no state of failure: a task that has failed is ``cancelled``, and its message says why.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from image_service.jobs.model import ComposeState, JobState, JobType
from image_service.jobs.plans.import_plan import AWAIT_STEP, AWAIT_UPLOAD, WAITS_FOR

if TYPE_CHECKING:
    from datetime import datetime

    from image_service.jobs.database.tasks import TaskRecord
    from image_service.jobs.model import JobSummary

ACTIVE, CANCELLING, CANCELLED, COMPLETED = "active", "cancelling", "cancelled", "completed"

CANCEL_TIME = timedelta(minutes=2)
"""The longest time for which a task is ``cancelling``."""

_AWAITED, _PENDING, _CONVERTING = "image upload awaited", "conversion pending", "converting"
_UPLOAD_PENDING, _UPLOADING = "upload pending", "uploading"
_STEP = re.compile(r"step ([a-z0-9-]+): ")  # before the reason of a failure
_ALL = 100  # percent
_NO_WORKER = "no worker is connected"
_PHASES = ("download", "convert", "digest", "send")
"""The phases in which the job of an import reports progress, in their order."""


@attrs.frozen
class TaskState:
    """The state of a task, or of one of its volumes.

    Args:
        name: ``active``, ``cancelling``, ``cancelled`` or ``completed``.
        message: for people; "": nothing needs to be said.
    """

    name: str
    message: str = ""


def state_of(record: TaskRecord, now: datetime) -> TaskState:
    """Return the state of a task at a time."""
    compose = record.compose
    if compose.state is ComposeState.SUCCESS:
        return TaskState(COMPLETED)
    if compose.state is ComposeState.FAILURE:
        return TaskState(CANCELLED, _describe_failure(record))
    if compose.state is ComposeState.CANCELLED:
        reason = record.task.cancel_reason
        message = f"cancelled by the user: {reason}" if reason else "cancelled by the user"
        is_stopping = any(_is_stopping(job, now) for job in record.jobs)
        return TaskState(CANCELLING if is_stopping else CANCELLED, message)
    return TaskState(ACTIVE, _describe_work(record))


def names_of(state: ComposeState) -> tuple[str, ...]:
    """Return the names of the states that tasks may have whose compose has that state."""
    if state is ComposeState.CANCELLED:
        return CANCELLING, CANCELLED
    return ({ComposeState.SUCCESS: COMPLETED, ComposeState.FAILURE: CANCELLED}.get(state, ACTIVE),)


def state_of_volume(record: TaskRecord, job: JobSummary, now: datetime) -> TaskState:
    """Return the state of one volume of an import, which the job makes."""
    state = state_of(record, now)
    if state.name != ACTIVE:
        return state
    return TaskState(ACTIVE, _describe_job(record, job))


def converted_bytes(job: JobSummary, image_bytes: int) -> int:
    """Return how much of an image the job of its import has converted, as bytes of the image."""
    if job.state is JobState.FINISHED:
        return image_bytes
    progress = job.progress
    if progress is None or not progress.total or progress.phase not in _PHASES:
        return 0
    phase = _PHASES.index(progress.phase)
    return image_bytes * (phase * progress.total + progress.done) // (len(_PHASES) * progress.total)


def _describe_failure(record: TaskRecord) -> str:
    """Return the reason of a failure, without the name of its step; of several disks it names the one."""
    error = record.compose.error
    if error is None:
        return "the task failed"
    match = _STEP.match(error.reason)
    if match is None:
        return error.reason
    reason = error.reason[match.end() :]
    imports = [job.step for job in record.jobs if job.type is JobType.IMPORT]
    if len(imports) > 1 and match[1] in imports:
        return f"disk {imports.index(match[1]) + 1}: {reason}"
    return reason


def progress_percent(record: TaskRecord) -> int:
    """Return how much of a task's jobs is done."""
    if record.compose.state is ComposeState.SUCCESS:
        return _ALL
    done = sum(map(_progress_of, record.jobs))
    return min(done // max(1, len(record.jobs)), _ALL - 1)


def _progress_of(job: JobSummary) -> int:
    if job.state is JobState.FINISHED:
        return _ALL
    if job.type is JobType.IMPORT:
        return converted_bytes(job, _ALL)
    progress = job.progress
    return _ALL * progress.done // progress.total if progress and progress.total else 0


def _is_stopping(job: JobSummary, now: datetime) -> bool:
    """Return True if a worker may still do a job that was cancelled."""
    if job.state is not JobState.CANCELLED or job.started_at is None or job.finished_at is None:
        return False
    return job.stopped_at is None and now < job.finished_at + CANCEL_TIME


def _describe_work(record: TaskRecord) -> str:
    """Return the message about a task that has not ended: that of its first job that has not."""
    if record.compose.error is not None:  # its row cannot be read
        return record.compose.error.reason
    for job in record.jobs:
        if job.state is not JobState.FINISHED:
            return _describe_job(record, job)
    if record.jobs:
        return _CONVERTING
    return _describe_wait(record)


def _describe_wait(record: TaskRecord) -> str:
    if not any(step.action == AWAIT_UPLOAD for step in record.compose.plan.steps):
        return _PENDING
    facts: Any = record.compose.provenance.get(AWAIT_STEP, {})
    reason = facts.get(WAITS_FOR)
    return f"{_AWAITED}: {reason}" if reason else _AWAITED


def _describe_job(record: TaskRecord, job: JobSummary) -> str:
    if job.type is JobType.IMPORT and job.state is JobState.WAITING:
        return _describe_wait(record)
    is_upload = job.type is JobType.UPLOAD
    if job.state is JobState.RUNNING:
        return _UPLOADING if is_upload else _CONVERTING
    pending = _UPLOAD_PENDING if is_upload else _PENDING
    return f"{pending}: {_NO_WORKER}" if job.state is JobState.QUEUED and not record.has_worker else pending
