"""Rows that somebody has changed in the database: each is refused or shown by its id, and hides no other."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa

from image_service.core.errors import BudgetExceeded, RowNotAuthentic, TaskLimitReached
from image_service.jobs.database.tables import ANSWERS, COMPOSES, JOBS, TASKS, open_database
from image_service.jobs.model import ComposeState, JobState, JobType
from image_service.jobs.task_model import TaskAnswer, TaskKind, TaskLimits
from tests.jobs.database.composing import Rows, make_compose
from tests.jobs.database.test_tasks import add, make_record

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["x", "[7]", '{"id": []}', '[{"name": 7}]', "null"]


JOB_DAMAGES = [
    (column, text)
    for column in ("artifacts", "result", "error", "progress", "type", "state")
    for text in TEXTS
    # What the service itself may write there.
    if (column, text) not in {("error", "null"), ("progress", "null"), ("result", '{"id": []}')}
]


def change(rows: Rows, table: sa.Table, row_id: str, column: str, value: sa.ColumnElement[Any]) -> None:
    """Change a row as a user with write access does."""
    values: dict[str, Any] = {column: value}
    rows.write(sa.update(table).where(table.c.id == row_id).values(values))


@pytest.mark.parametrize(("column", "text"), JOB_DAMAGES)
def test_damaged_job_keeps_no_other_from_workers(rows: Rows, column: str, text: str) -> None:
    check_job(rows, column, sa.literal(text))


@pytest.mark.parametrize("column", ["artifacts", "result", "worker", "step", "type", "state", "attempt"])
def test_job_with_bytes_keeps_no_other_from_workers(tmp_path: Path, column: str) -> None:
    with closing(open_database(None, tmp_path)) as database:  # PostgreSQL refuses these values
        check_job(Rows(database), column, sa.literal_column("x'00ff'"))


def check_job(rows: Rows, column: str, value: sa.ColumnElement[Any]) -> None:
    (damaged, jobs), (other, others) = rows.add(), rows.add()
    for job_id in (jobs["customize"], others["customize"]):
        rows.queues.mark_queued(job_id, 1)
    change(rows, JOBS, jobs["customize"], column, value)
    with pytest.raises(RowNotAuthentic, match="not as the service has written it"):
        rows.jobs.find(jobs["customize"])
    with pytest.raises(RowNotAuthentic):
        rows.jobs.find_of_compose(damaged.id)
    (queue,) = rows.queues.find_ready("org-1", list(JobType), "x86_64", 100)
    assert queue.type is JobType.CUSTOMIZE
    assert {count.type for count in rows.jobs.count()} <= set(JobType)
    rows.start(others["customize"])
    rows.finish(others["customize"])
    assert next(job.state for job in rows.jobs.find_of_compose(other.id)) is JobState.FINISHED
    assert {len(found) for found in rows.jobs.summarize([damaged.id, other.id]).values()} == {2}
    assert rows.composes.finish(damaged.id, ComposeState.FAILURE)
    assert rows.composes.delete(damaged.id)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        (TASKS, "request"),
        (TASKS, "tags"),
        (COMPOSES, "plan"),
        (COMPOSES, "uploads"),
        (COMPOSES, "error"),
        (COMPOSES, "provenance"),
        (COMPOSES, "image_type"),
        (COMPOSES, "state"),
    ],
    ids=str,
)
def test_damaged_task_hides_no_other_and_is_cancelled(
    rows: Rows, table: sa.Table, column: str, text: str
) -> None:
    damaged, other = make_record(), make_record()
    for record in (damaged, other):
        add(rows, record)
    row_id = damaged.task.id if table is TASKS else damaged.compose.id
    change(rows, table, row_id, column, sa.literal(text))
    found = {record.task.id: record for record in rows.find_tasks("org-1", list(TaskKind))}
    assert found.keys() == {damaged.task.id, other.task.id}
    assert found[other.task.id].task == other.task
    assert found[other.task.id].compose == other.compose
    expected = 1 if column == "state" else 2
    assert sum(rows.tasks.count().values()) == expected
    assert sum(rows.composes.count_by_state().values()) == expected
    answer = TaskAnswer("cancel", {})
    assert rows.tasks.cancel(found[damaged.task.id].task, "no need", answer) == {}
    rows.tasks.add(make_record(), None, TaskLimits(2, 2**40), TaskAnswer("next", {}))
    shown = {record.task.id: record.compose.state for record in rows.find_tasks("org-1", list(TaskKind))}
    assert shown[damaged.task.id] is ComposeState.CANCELLED


@pytest.mark.parametrize("text", [*TEXTS[:2], "null", "7"])
def test_damaged_answer_is_reported_and_its_request_is_not_carried_out_again(rows: Rows, text: str) -> None:
    answer, limits = TaskAnswer("first", {"ImportTaskId": "1"}), TaskLimits(9, 2**40)
    rows.tasks.add(make_record(), None, limits, answer)
    rows.write(sa.update(ANSWERS).values(output=sa.literal_column(f"'{text}'")))
    for ask in (
        lambda: rows.tasks.find_answer("first"),
        lambda: rows.tasks.add(make_record(), None, limits, answer),
        lambda: rows.tasks.add_answer("org-1", answer),
    ):
        with pytest.raises(RowNotAuthentic, match="sign the request again"):
            ask()
    assert len(rows.find_tasks("org-1", list(TaskKind))) == 1
    rows.tasks.add(make_record(), None, limits, TaskAnswer("again", {}))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_large_numbers_of_bytes_hide_no_other_tenant(rows: Rows, number: int) -> None:
    check_other_tenant(rows, sa.literal(number, sa.BigInteger))


@pytest.mark.parametrize("value", ["9e999", "-9e999", "'text'", "x'00ff'"])
def test_bytes_of_another_form_hide_no_other_tenant(tmp_path: Path, value: str) -> None:
    with closing(open_database(None, tmp_path)) as database:  # PostgreSQL refuses these values
        check_other_tenant(Rows(database), sa.literal_column(value))


def check_other_tenant(rows: Rows, value: sa.ColumnElement[Any]) -> None:
    """Put a value into the numbers of bytes of a compose: only its tenant's orders may be refused."""
    damaged, _ = rows.add(make_compose(tenant="org-1", store_bytes=1))
    rows.add(make_compose(tenant="org-1", store_bytes=1))
    for column in ("row_bytes", "store_bytes", "sent_bytes"):
        change(rows, COMPOSES, damaged.id, column, value)
    rows.add(make_compose(tenant="org-2", store_bytes=1))
    assert rows.composes.largest_tenants(2).keys() == {"org-1", "org-2"}
    with suppress(BudgetExceeded):
        rows.add(make_compose(tenant="org-1", store_bytes=1))
    rows.composes.finish(damaged.id, ComposeState.FAILURE)
    rows.add(make_compose(tenant="org-1", store_bytes=1))


def test_large_volumes_refuse_imports_of_their_tenant_alone(rows: Rows) -> None:
    records = [make_record(), make_record()]
    for record in records:
        add(rows, record)
    for record in records:
        change(rows, TASKS, record.task.id, "volume_bytes", sa.literal(2**63 - 1, sa.BigInteger))
    limits = TaskLimits(9, 2**40)
    own = make_record()
    own = attrs.evolve(own, task=attrs.evolve(own.task, volume_bytes=1))
    with pytest.raises(TaskLimitReached, match="EC2_MAX_BYTES"):
        rows.tasks.add(own, None, limits, TaskAnswer("own", {}))
    other = make_record(tenant="org-2")
    rows.tasks.add(other, None, limits, TaskAnswer("other", {}))
