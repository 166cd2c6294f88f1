"""The states of tasks, as a function of their rows and the time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.conversion_tasks.states import converted_bytes, state_of
from image_service.jobs.model import ComposeState, Job, JobError, JobProgress, JobState, JobType
from image_service.jobs.plans.import_plan import ImportedDisk, make_import_plan, make_object_import_plan
from tests.jobs.database.composing import NOW
from tests.jobs.database.test_tasks import make_record

if TYPE_CHECKING:
    from image_service.jobs.database.tasks import TaskRecord

DISK = ImportedDisk("RAW", 512, 1, {})
PHASES = ["download", "convert", "digest", "send"]
IMPORT = Job(
    id="j",
    compose_id="c",
    tenant="org-1",
    step="import",
    type=JobType.IMPORT,
    architecture="x86_64",
    state=JobState.WAITING,
)


def record_of(state: ComposeState, *jobs: Job, reason: str = "", error: JobError | None = None) -> TaskRecord:
    record = make_record(state=state, error=error)
    compose = attrs.evolve(record.compose, plan=make_import_plan([DISK], [], NOW))
    task = attrs.evolve(record.task, cancel_reason=reason)
    return attrs.evolve(record, task=task, compose=compose, jobs=jobs)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (record_of(ComposeState.PENDING), ("active", "image upload awaited")),
        (record_of(ComposeState.BUILDING, IMPORT), ("active", "image upload awaited")),
        (
            record_of(ComposeState.BUILDING, attrs.evolve(IMPORT, state=JobState.QUEUED)),
            ("active", "conversion pending"),
        ),
        (
            record_of(
                ComposeState.BUILDING,
                attrs.evolve(IMPORT, state=JobState.FINISHED),
                attrs.evolve(IMPORT, state=JobState.RUNNING),
            ),
            ("active", "converting"),
        ),
        (
            record_of(ComposeState.REGISTERING, attrs.evolve(IMPORT, state=JobState.FINISHED)),
            ("active", "converting"),
        ),
        (record_of(ComposeState.SUCCESS), ("completed", "")),
        (record_of(ComposeState.FAILURE, error=JobError(4, "no disk")), ("cancelled", "no disk")),
        (record_of(ComposeState.CANCELLED), ("cancelled", "cancelled by the user")),
        (record_of(ComposeState.CANCELLED, reason="x"), ("cancelled", "cancelled by the user: x")),
    ],
    ids=range(9),
)
def test_state_follows_the_rows(record: TaskRecord, expected: tuple[str, str]) -> None:
    state = state_of(record, NOW)
    assert (state.name, state.message) == expected


@pytest.mark.parametrize(
    ("steps", "reason", "message"),
    [
        (["import"], "step import: image: its content is raw", "image: its content is raw"),
        (["import", "import-2"], "step import-2: its content is raw", "disk 2: its content is raw"),
        (["import", "import-2"], "step import: its content is raw", "disk 1: its content is raw"),
        (["import"], "step await-upload: the manifest has no size", "the manifest has no size"),
        (["convert", "upload"], "step upload: the bucket is away", "the bucket is away"),
        (["import"], "the job engine has lost this compose", "the job engine has lost this compose"),
    ],
)
def test_reason_of_a_failure_begins_with_what_failed(steps: list[str], reason: str, message: str) -> None:
    jobs = [
        attrs.evolve(IMPORT, step=step, type=JobType.IMPORT if "import" in step else JobType.CONVERT)
        for step in steps
    ]
    record = record_of(ComposeState.FAILURE, *jobs, error=JobError(4, reason))
    assert state_of(record, NOW).message == message


@pytest.mark.parametrize("jobs", [(), (IMPORT,)])
def test_awaited_upload_shows_why_it_cannot_be_read(jobs: tuple[Job, ...]) -> None:
    record = record_of(ComposeState.BUILDING, *jobs)
    for facts, message in (
        ({"waits_for": ""}, "image upload awaited"),
        ({"waits_for": "URL answered with status 403"}, "image upload awaited: URL answered with status 403"),
    ):
        compose = attrs.evolve(record.compose, provenance={"await-upload": facts})
        assert state_of(attrs.evolve(record, compose=compose), NOW).message == message


@pytest.mark.parametrize("jobs", [(), (IMPORT,)])
def test_import_of_an_object_awaits_no_upload(jobs: tuple[Job, ...]) -> None:
    record = record_of(ComposeState.BUILDING, *jobs)
    compose = attrs.evolve(record.compose, plan=make_object_import_plan([DISK], []))
    assert state_of(attrs.evolve(record, compose=compose), NOW).message == "conversion pending"


@given(
    started=st.booleans(),
    stopped=st.none() | st.integers(0, 300),
    now=st.integers(0, 300),
)
def test_task_is_cancelling_while_a_worker_may_do_its_job(
    *, started: bool, stopped: int | None, now: int
) -> None:
    cancelled = attrs.evolve(
        IMPORT,
        state=JobState.CANCELLED,
        started_at=NOW - timedelta(seconds=300) if started else None,
        finished_at=NOW,
        stopped_at=None if stopped is None else NOW + timedelta(seconds=stopped),
    )
    state = state_of(record_of(ComposeState.CANCELLED, cancelled), NOW + timedelta(seconds=now))
    has_stopped = not started or stopped is not None or now >= 120
    assert state.name == ("cancelled" if has_stopped else "cancelling")


@given(
    size=st.integers(512, 2**44),
    total=st.integers(1, 2**44),
    fractions=st.lists(st.tuples(st.integers(0, 3), st.fractions(0, 1)), min_size=2, max_size=8),
)
def test_converted_bytes_rise_from_none_to_all(
    size: int, total: int, fractions: list[tuple[int, float]]
) -> None:
    def converted(phase: int, fraction: float) -> int:
        progress = JobProgress(int(total * fraction), total, PHASES[phase])
        return converted_bytes(attrs.evolve(IMPORT, state=JobState.RUNNING, progress=progress), size)

    seen = [converted(phase, fraction) for phase, fraction in sorted(fractions)]
    assert seen == sorted(seen)
    assert converted(0, 0) == 0
    assert converted(3, 1) == size
    assert converted_bytes(attrs.evolve(IMPORT, state=JobState.FINISHED), size) == size
    assert converted_bytes(IMPORT, size) == 0
