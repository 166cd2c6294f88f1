"""The rows of EC2's tasks, and the answers to changing requests. Every call blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import sqlalchemy as sa

from image_service.core.errors import RowNotAuthentic, TaskLimitReached
from image_service.jobs.database.budgets import sum_bytes, to_bytes
from image_service.jobs.database.documents import Document
from image_service.jobs.database.statements import UNFINISHED, lock_tenant, utc_now
from image_service.jobs.database.tables import ANSWERS, ARTIFACTS, COMPOSES, IMAGES, JOBS, TASKS
from image_service.jobs.database.values import (
    COMPOSE_COLUMNS,
    JOB_SUMMARY_COLUMNS,
    TASK_COLUMNS,
    UNREADABLE,
    row_of,
    to_job_summary,
    to_shown_compose,
    to_task,
)
from image_service.jobs.model import ComposeState
from image_service.jobs.task_model import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from image_service.common.database.database import Database
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.model import Compose, JobSummary, Json
    from image_service.jobs.task_model import ConversionTask, ImportSource, TaskAnswer, TaskLimits

# Workers report it, and so decide how large it is; of a task that has ended nothing shows it.
_PROVENANCE = sa.case((UNFINISHED, COMPOSES.c.provenance), else_=sa.literal({}, Document))
_COMPOSE_COLUMNS = [
    *(column for column in COMPOSE_COLUMNS if column is not COMPOSES.c.provenance),
    _PROVENANCE.label("provenance"),
]


@attrs.frozen
class TaskRecord:
    """A task with the rows that do its work.

    Args:
        compose: of one that was read, only an unfinished one has its provenance.
        has_worker: a worker for the jobs is connected, or the task does not wait for one.
    """

    task: ConversionTask
    compose: Compose
    jobs: tuple[JobSummary, ...] = ()
    has_worker: bool = True


@attrs.frozen
class TaskFilter:
    """A filter of tasks; None: any.

    Args:
        states: of their composes.
    """

    tenant: str
    kinds: Collection[TaskKind]
    ids: Collection[str] | None = None
    states: Collection[ComposeState] | None = None


TaskPosition: TypeAlias = "tuple[datetime, str]"
"""The place of a task in lists: when it was created, and its id."""


class TaskRepository:
    """Tasks, and the answers to changing requests.

    Args:
        composes: in the same database.
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(
        self, database: Database, composes: ComposeRepository, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._database = database
        self._composes = composes
        self._now = now

    def add(
        self, record: TaskRecord, source: ImportSource | None, limits: TaskLimits, answer: TaskAnswer
    ) -> tuple[Json, bool]:
        """Add a task, its compose and the answer to its request, in one transaction.

        Returns:
            the answer, and True. If a request with this signature was answered before: that answer, and
            False, and nothing is added.

        Raises:
            TaskLimitReached: the tenant has too many tasks, or too many bytes.
            NotFound: the catalog image that the compose uses is not there any more.
        """
        task = record.task

        def work(connection: sa.Connection) -> tuple[Json, bool]:
            lock_tenant(self._database, connection, task.tenant)
            if (first := _find_answer(connection, answer.digest)) is not None:
                return first, False
            _check_limits(connection, task, limits)
            self._composes.insert(connection, record.compose, source)
            connection.execute(sa.insert(TASKS), row_of(task))
            self._add_answer(connection, answer)
            return answer.output, True

        return self._database.transact(work)

    def cancel(self, task: ConversionTask, reason: str, answer: TaskAnswer) -> Json | None:
        """Cancel a task, and record the answer to its request, in one transaction.

        Returns:
            the answer, of the first request with this signature; None: the task has ended before, or puts its
            images into the catalog, where they may be in use.
        """
        is_cancellable = (COMPOSES.c.id == task.compose_id) & (COMPOSES.c.state != ComposeState.REGISTERING)
        lock = sa.update(COMPOSES).where(is_cancellable).values(id=task.compose_id)

        def work(connection: sa.Connection) -> Json | None:
            is_locked = bool(connection.execute(lock).rowcount)
            if not is_locked or not self._composes.end(connection, task.compose_id, ComposeState.CANCELLED):
                return _find_answer(connection, answer.digest)
            update = sa.update(TASKS).where(TASKS.c.id == task.id).values(cancel_reason=reason)
            connection.execute(update)
            self._add_answer(connection, answer)
            return answer.output

        return self._database.transact(work)

    def find_answer(self, digest: str) -> Json | None:
        """Return the answer to the request with a signature; None: there was none."""
        return self._database.transact(lambda connection: _find_answer(connection, digest))

    def add_answer(self, tenant: str, answer: TaskAnswer) -> Json:
        """Record the answer to a request of a tenant that changes nothing else; return it.

        If a request with this signature was answered meanwhile: return that answer.
        """

        def work(connection: sa.Connection) -> Json:
            lock_tenant(self._database, connection, tenant)
            if (first := _find_answer(connection, answer.digest)) is not None:
                return first
            self._add_answer(connection, answer)
            return answer.output

        return self._database.transact(work)

    def find(
        self,
        wanted: TaskFilter,
        *,
        after: TaskPosition | None = None,
        limit: int = 1000,
        newest_first: bool = False,
    ) -> list[ConversionTask]:
        """Return tasks, oldest first.

        Args:
            after: of a task, which need not exist any more: those that follow it in this order.
        """
        columns = TASKS.c.created_at, TASKS.c.id
        position = sa.tuple_(*columns)
        order = [column.desc() if newest_first else column for column in columns]
        select = _where(sa.select(*TASK_COLUMNS), wanted).order_by(*order).limit(limit)
        if after is not None:
            last = sa.tuple_(
                *(sa.literal(value, column.type) for value, column in zip(after, columns, strict=True))
            )
            select = select.where(position < last if newest_first else position > last)
        rows = self._database.transact(lambda connection: connection.execute(select).mappings().all())
        return [to_task(row) for row in rows]

    def find_ids(self, wanted: TaskFilter) -> set[str]:
        """Return the ids of tasks."""
        select = _where(sa.select(TASKS.c.id), wanted)
        return set(self._database.transact(lambda connection: connection.scalars(select).all()))

    def read(self, tasks: Sequence[ConversionTask]) -> list[TaskRecord]:
        """Return tasks with the rows that do their work, without those that were deleted meanwhile."""
        compose_ids = [task.compose_id for task in tasks]
        composes = sa.select(*_COMPOSE_COLUMNS).where(COMPOSES.c.id.in_(compose_ids))
        of_composes = JOBS.c.compose_id.in_(compose_ids)
        jobs = sa.select(*JOB_SUMMARY_COLUMNS).where(of_composes).order_by(JOBS.c.number)

        def work(connection: sa.Connection) -> list[TaskRecord]:
            by_id = {row["id"]: to_shown_compose(row) for row in connection.execute(composes).mappings()}
            of_compose: dict[str, list[JobSummary]] = {}
            for row in connection.execute(jobs).mappings():
                of_compose.setdefault(row["compose_id"], []).append(to_job_summary(row))
            return [
                TaskRecord(task, by_id[task.compose_id], tuple(of_compose.get(task.compose_id, ())))
                for task in tasks
                if task.compose_id in by_id
            ]

        return self._database.transact(work)

    def count(self) -> Mapping[tuple[TaskKind, ComposeState], int]:
        """Return how many tasks there are by kind and state of their composes, if both are known."""
        kind = (TASKS.c.kind, COMPOSES.c.state)
        is_known = TASKS.c.kind.in_(TaskKind) & COMPOSES.c.state.in_(ComposeState)
        tasks = sa.select(*kind, sa.func.count()).join(COMPOSES, COMPOSES.c.id == TASKS.c.compose_id)
        count = tasks.where(is_known)
        rows = self._database.transact(lambda connection: connection.execute(count.group_by(*kind)).all())
        return {(TaskKind(kind), ComposeState(state)): number for kind, state, number in rows}

    def forget_answers(self, before: datetime) -> None:
        """Delete answers that were given before that time."""
        delete = sa.delete(ANSWERS).where(ANSWERS.c.created_at < before)
        self._database.transact(lambda connection: connection.execute(delete).close())

    def _add_answer(self, connection: sa.Connection, answer: TaskAnswer) -> None:
        row = {"digest": answer.digest, "output": answer.output, "created_at": self._now()}
        connection.execute(sa.insert(ANSWERS), row)


def _where(select: sa.Select[Any], wanted: TaskFilter) -> sa.Select[Any]:
    select = select.where(TASKS.c.tenant == wanted.tenant, TASKS.c.kind.in_(wanted.kinds))
    if wanted.ids is not None:
        select = select.where(TASKS.c.id.in_(wanted.ids))
    if wanted.states is not None:
        # Not a join, which databases may begin with the composes of a state, to sort all of them.
        state = sa.select(COMPOSES.c.state).where(COMPOSES.c.id == TASKS.c.compose_id).scalar_subquery()
        select = select.where(state.in_(wanted.states))
    return select


def _find_answer(connection: sa.Connection, digest: str) -> Json | None:
    """Return the answer to the request with a signature; raises RowNotAuthentic."""
    row = connection.execute(sa.select(ANSWERS.c.output).where(ANSWERS.c.digest == digest)).first()
    if row is None:
        return None
    if not isinstance(row.output, dict):
        raise RowNotAuthentic(f"the answer to this request: {UNREADABLE}; sign the request again")
    return row.output


def _check_limits(connection: sa.Connection, task: ConversionTask, limits: TaskLimits) -> None:
    """Refuse a task above a limit of its tenant, whose row is locked."""
    unfinished = (
        sa.select(sa.func.count(), sum_bytes(TASKS.c.volume_bytes))
        .join(COMPOSES, COMPOSES.c.id == TASKS.c.compose_id)
        .where(TASKS.c.tenant == task.tenant, UNFINISHED)
    )
    number, reserved = connection.execute(unfinished).one()
    if number >= limits.max_tasks:
        raise TaskLimitReached(f"EC2_MAX_TASKS: {number} tasks have not ended, of at most {limits.max_tasks}")
    # An import that has registered its images, and has not ended, counts as a task.
    counted = (
        sa.select(ARTIFACTS.c.key)
        .join(JOBS, JOBS.c.id == ARTIFACTS.c.job_id)
        .join(COMPOSES, COMPOSES.c.id == JOBS.c.compose_id)
        .where(COMPOSES.c.tenant == task.tenant, UNFINISHED)
    )
    stored = sa.select(sum_bytes(IMAGES.c.volume_bytes)).where(
        IMAGES.c.tenant == task.tenant, IMAGES.c.key.not_in(counted)
    )
    used = to_bytes(reserved) + to_bytes(connection.execute(stored).scalar_one())
    if task.volume_bytes and used + task.volume_bytes > limits.max_bytes:
        raise TaskLimitReached(
            f"EC2_MAX_BYTES: imported volumes have {used} bytes, and this import {task.volume_bytes}; at most"
            f" {limits.max_bytes} are allowed"
        )
