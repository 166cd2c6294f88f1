"""The rows of EC2's tasks, and images in use, in each database."""

from __future__ import annotations

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa

from image_service.core.errors import Conflict, NotFound, TaskLimitReached
from image_service.jobs.database.tables import COMPOSES, JOBS, TASKS
from image_service.jobs.database.tasks import TaskFilter, TaskRecord
from image_service.jobs.database.values import row_of
from image_service.jobs.image_ids import alias_digits
from image_service.jobs.model import ComposeOrigin, ComposeState, Job, JobState, JobType
from image_service.jobs.task_model import (
    ConversionTask,
    ImportSource,
    TaskAnswer,
    TaskKind,
    TaskLimits,
)
from tests.jobs.database.composing import NOW, Rows, ids_of_jobs, make_artifact, make_compose, make_image

if TYPE_CHECKING:
    from datetime import datetime

    from image_service.jobs.model import Artifact, Json

SOURCE = ImportSource(("https://store.example/m?X-Amz-Signature=s3cr3t",))
LIMITS = TaskLimits(100, 2**40)
GIB = 1 << 30


def make_record(kind: TaskKind = TaskKind.IMPORT_VOLUME, **values: Any) -> TaskRecord:
    compose = make_compose(
        origin=ComposeOrigin.EXPORT if kind is TaskKind.EXPORT_INSTANCE else ComposeOrigin.IMPORT,
        image_type=None,
        **values,
    )
    task = ConversionTask(
        id=f"{kind}-{alias_digits(compose.id)}",
        compose_id=compose.id,
        tenant=compose.tenant,
        kind=kind,
        request={"Volume": {"Size": 1}},
        tags={"a": "b"},
        volume_bytes=GIB,
        created_at=compose.created_at,
        expires_at=NOW + timedelta(days=7),
    )
    return TaskRecord(task, compose)


def answer(record: TaskRecord, digest: str | None = None) -> TaskAnswer:
    return TaskAnswer(digest or record.task.id, {"task": record.task.id})


def add(rows: Rows, record: TaskRecord, limits: TaskLimits = LIMITS, digest: str | None = None) -> Json:
    return rows.tasks.add(record, SOURCE, limits, answer(record, digest))[0]


def test_task_is_found_with_its_compose_and_jobs(rows: Rows) -> None:
    record, other = make_record(), make_record(TaskKind.EXPORT_INSTANCE, created_at=NOW - timedelta(days=1))
    given, is_new = rows.tasks.add(record, SOURCE, LIMITS, answer(record))
    add(rows, other)
    assert given == {"task": record.task.id}
    (found,) = rows.find_tasks("org-1", [TaskKind.IMPORT_VOLUME, TaskKind.IMPORT_INSTANCE])
    assert (found.task, found.compose) == (record.task, record.compose)
    assert is_new
    assert {job.step: job.id for job in found.jobs} == ids_of_jobs(record.compose)
    ids = [each.task.id for each in rows.find_tasks("org-1", list(TaskKind))]
    assert ids == [other.task.id, record.task.id]
    assert rows.find_tasks("org-1", list(TaskKind), [record.task.id]) == [found]
    assert rows.find_tasks("org-1", list(TaskKind), []) == []
    assert rows.find_tasks("org-2", list(TaskKind)) == []
    rows.composes.delete(record.compose.id)
    assert rows.find_tasks("org-1", [TaskKind.IMPORT_VOLUME]) == []


def fill(rows: Rows, number: int) -> None:
    """Add tasks that have ended, whose workers have reported much."""
    facts = {"customize": {"log": "x" * 65_536}}

    def work(connection: sa.Connection) -> None:
        for _ in range(number):
            record = make_record()
            compose = attrs.evolve(record.compose, state=ComposeState.SUCCESS, provenance=facts)
            job = Job(
                id=f"job-of-{compose.id}",
                compose_id=compose.id,
                step="customize",
                type=JobType.CUSTOMIZE,
                state=JobState.FINISHED,
                tenant=compose.tenant,
                architecture="x86_64",
                result=facts,
            )
            connection.execute(sa.insert(COMPOSES), row_of(compose))
            connection.execute(sa.insert(TASKS), row_of(record.task))
            connection.execute(sa.insert(JOBS), {**row_of(job), "number": 0})

    rows.database.transact(work)


@pytest.mark.parametrize("number", [50, pytest.param(10_000, marks=pytest.mark.soak)])
def test_list_reads_nothing_of_what_workers_report(rows: Rows, number: int) -> None:
    add(rows, make_record())
    fill(rows, number)
    tracemalloc.start()
    begun = time.monotonic()
    found = rows.find_tasks("org-1", [TaskKind.IMPORT_VOLUME])
    print(f"{number} tasks: {time.monotonic() - begun:.2f} s")  # noqa: T201 - figures for people
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == number + 1
    assert peak < 2**20 + 20_000 * number


def test_source_is_pinned_until_the_import_ends(rows: Rows) -> None:
    record = make_record()
    add(rows, record)
    assert rows.composes.import_source(record.compose) == SOURCE
    pinned = attrs.evolve(SOURCE, manifests=(b"<manifest/>", b"\0\xff"))
    rows.composes.pin_manifests(record.compose, pinned)
    assert rows.composes.import_source(record.compose) == pinned
    rows.composes.finish(record.compose.id, ComposeState.FAILURE)
    rows.composes.pin_manifests(record.compose, pinned)
    assert rows.composes.import_source(record.compose) is None


def test_replicas_that_get_one_signature_at_once_add_one_task(rows: Rows) -> None:
    records = [make_record() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda record: add(rows, record, digest="one"), records))
    (found,) = rows.find_tasks("org-1", list(TaskKind))
    assert answers == [{"task": found.task.id}] * 6
    assert rows.tasks.find_answer("one") == answers[0]
    assert rows.composes.count_by_state() == {ComposeState.PENDING: 1}


def test_task_is_cancelled_once_by_one_signature(rows: Rows) -> None:
    record = make_record()
    add(rows, record)

    def cancel(digest: str) -> Json | None:
        return rows.tasks.cancel(record.task, f"by {digest}", TaskAnswer(digest, {"by": digest}))

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(cancel, ["one", "two"] * 3))
    winner = next(each for each in answers if each is not None)["by"]
    assert sorted(map(str, answers)) == sorted([str({"by": winner})] * 3 + ["None"] * 3)
    (found,) = rows.find_tasks("org-1", list(TaskKind))
    assert found.task.cancel_reason == f"by {winner}"
    assert found.compose.state is ComposeState.CANCELLED


def test_requests_at_once_do_not_exceed_the_limits_of_a_tenant(rows: Rows) -> None:
    def is_added(limits: TaskLimits) -> bool:
        try:
            add(rows, make_record(), limits)
        except TaskLimitReached:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(is_added, [TaskLimits(3, 2**40)] * 6)) == 3
        assert sum(threads.map(is_added, [TaskLimits(100, 5 * GIB)] * 6)) == 2
    rows.images.add(make_image(1, volume_bytes=GIB, tenant="org-2"))
    assert not is_added(TaskLimits(100, 5 * GIB))
    with pytest.raises(TaskLimitReached, match=r"EC2_MAX_BYTES: .* 5368709120 bytes"):
        add(rows, make_record(), TaskLimits(100, 5 * GIB))


def test_answers_are_forgotten(rows: Rows) -> None:
    record = make_record()
    add(rows, record)
    rows.tasks.forget_answers(NOW)
    assert rows.tasks.find_answer(record.task.id) is not None
    rows.tasks.forget_answers(NOW + timedelta(seconds=1))
    assert rows.tasks.find_answer(record.task.id) is None


def test_image_is_in_use_until_all_its_readers_have_ended(rows: Rows) -> None:
    image = make_image(1)
    rows.images.add(image)
    readers = [make_record(TaskKind.EXPORT_INSTANCE, source_image=image.id) for _ in range(2)]
    for reader in readers:
        add(rows, reader)
    for reader in readers:
        with pytest.raises(Conflict, match="in use"):
            rows.images.delete(image.id)
        rows.composes.finish(reader.compose.id, ComposeState.SUCCESS)
    assert rows.images.delete(image.id)
    assert not rows.images.delete(image.id)
    assert rows.objects.find_discarded(9) == [image.artifact.key]
    for tenant in ("org-1", "org-2"):
        with pytest.raises(NotFound):
            add(rows, make_record(TaskKind.EXPORT_INSTANCE, source_image=image.id, tenant=tenant))


def test_image_is_either_deleted_or_read(rows: Rows) -> None:
    """Of a deletion and a new reader at once, one is refused."""

    def delete(image_id: str) -> bool:
        try:
            return rows.images.delete(image_id)
        except Conflict:
            return False

    def read(image_id: str) -> bool:
        try:
            add(rows, make_record(TaskKind.EXPORT_INSTANCE, source_image=image_id))
        except NotFound:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        for number in range(10):
            image = make_image(number)
            rows.images.add(image)
            deleting, reading = threads.submit(delete, image.id), threads.submit(read, image.id)
            assert deleting.result() != reading.result()


def add_with_image(rows: Rows) -> tuple[TaskRecord, Artifact]:
    """Add an import that has put its image into the catalog, and has not ended; return the artifact, too."""
    record = make_record()
    rows.tasks.add(record, SOURCE, LIMITS, answer(record))
    job_ids = ids_of_jobs(record.compose)
    rows.start(job_ids["customize"])
    artifact = make_artifact(job_ids["customize"])
    rows.objects.add_artifact(job_ids["customize"], 1, artifact)
    rows.composes.set_state(record.compose.id, ComposeState.REGISTERING)
    source = f"import:{record.task.id}"
    rows.images.add(make_image(1, source=source, artifact=artifact, volume_bytes=record.task.volume_bytes))
    return record, artifact


def test_import_that_registers_its_image_is_not_cancelled(rows: Rows) -> None:
    record, _ = add_with_image(rows)
    assert rows.tasks.cancel(record.task, "", TaskAnswer("cancel", {})) is None
    (found,) = rows.find_tasks("org-1", list(TaskKind))
    assert found.compose.state is ComposeState.REGISTERING
    assert rows.images.find_page("org-1", 0, 9)[1] == 1


def test_volume_counts_once_while_its_import_ends(rows: Rows) -> None:
    record, _ = add_with_image(rows)
    for _ in range(2):
        with pytest.raises(TaskLimitReached, match=f"have {GIB} bytes"):
            add(rows, make_record(), TaskLimits(100, GIB))
        rows.composes.finish(record.compose.id, ComposeState.SUCCESS)


def test_import_without_success_leaves_no_image(rows: Rows) -> None:
    record, artifact = add_with_image(rows)
    rows.composes.finish(record.compose.id, ComposeState.FAILURE)
    assert rows.images.find_page("org-1", 0, 9) == ([], 0)
    assert rows.objects.find_discarded(9) == [artifact.key]


@pytest.mark.parametrize("newest_first", [False, True])
def test_batches_are_those_of_a_sorted_list(rows: Rows, *, newest_first: bool) -> None:
    kinds = [TaskKind.IMPORT_VOLUME, TaskKind.IMPORT_INSTANCE]
    states = [ComposeState.PENDING, ComposeState.SUCCESS]
    records = [
        make_record(
            (*kinds, TaskKind.EXPORT_INSTANCE)[number % 3], created_at=NOW + timedelta(0, number // 5)
        )
        for number in range(40)
    ]
    for record in records:
        add(rows, record)
    for record in records[::4]:
        rows.composes.finish(record.compose.id, ComposeState.FAILURE)
    wanted = sorted(
        (record.task.created_at, record.task.id)
        for number, record in enumerate(records)
        if record.task.kind in kinds and number % 4
    )
    if newest_first:
        wanted.reverse()
    found: list[tuple[datetime, str]] = []
    while batch := rows.tasks.find(
        TaskFilter("org-1", kinds, states=states),
        after=found[-1] if found else None,
        limit=3,
        newest_first=newest_first,
    ):
        assert len(batch) <= 3
        found += [(task.created_at, task.id) for task in batch]
    assert found == wanted
    assert rows.tasks.find_ids(TaskFilter("org-1", kinds, states=states)) == {place[1] for place in wanted}
