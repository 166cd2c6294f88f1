"""The objects that jobs store. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import sqlalchemy as sa

from image_service.core.errors import BudgetExceeded, InvalidRequest, JobNotRunning
from image_service.jobs.database.budgets import MOST_BYTES, check_budget
from image_service.jobs.database.statements import (
    UNFINISHED,
    discard,
    lock_tenant,
    running_attempt,
    undiscard,
    utc_now,
)
from image_service.jobs.database.tables import ARTIFACTS, COMPOSES, DISCARDED, JOBS
from image_service.jobs.database.values import UNREADABLE
from image_service.jobs.model import Artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from image_service.common.database.database import Database
    from image_service.jobs.database.sealing import RowCipher
    from image_service.jobs.model import Job, TenantBudget

MAX_FILES = 16
"""Of an attempt; plans know one each."""
ABANDONED = timedelta(days=1)
"""Until the deletion of an object that did not become an artifact; uploads end before."""


class ObjectRepository:
    """The uploaded files of attempts, and the objects to delete.

    Args:
        cipher: tags artifacts.
        budget: of each tenant.
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(
        self,
        database: Database,
        cipher: RowCipher,
        budget: TenantBudget,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._cipher = cipher
        self._budget = budget
        self._now = now

    def announce_object(self, key: str, job: Job, size: int | None) -> int:
        """Record, before a file of a job is stored, that it is to be deleted unless it becomes an artifact.

        Its bytes count as sent. Each attempt of a compose may send the most that the plan makes, and all of
        them together once more as much, for files that were lost.

        Args:
            key: that no object has had.
            size: of the file; None: not known.

        Returns:
            the bytes that it may have.

        Raises:
            BudgetExceeded: the plan cannot make so much, or the tenant has no room for it.
            JobNotRunning: the compose has ended.
            InvalidRequest: the attempt has too many files.
        """
        is_running = (COMPOSES.c.id == job.compose_id) & UNFINISHED
        bytes_of = sa.select(COMPOSES.c.store_bytes, COMPOSES.c.sent_bytes).where(is_running)
        attempts = sa.select(sa.func.max(JOBS.c.attempt)).where(JOBS.c.compose_id == job.compose_id)
        stored = sa.select(sa.func.count()).where(
            ARTIFACTS.c.job_id == job.id, ARTIFACTS.c.attempt == job.attempt
        )
        row = {"key": key, "after": self._now() + ABANDONED, "tenant": job.tenant}
        insert = self._database.insert(DISCARDED).values(row)

        def work(connection: sa.Connection) -> int:
            lock_tenant(self._database, connection, job.tenant)
            if connection.execute(stored).scalar_one() >= MAX_FILES:
                raise InvalidRequest(f"an attempt has at most {MAX_FILES} files")
            row = connection.execute(bytes_of).first()
            if row is None:
                raise JobNotRunning("the compose has ended")
            reserved, sent = row
            if not all(isinstance(number, int) and 0 <= number <= MOST_BYTES for number in row):
                raise JobNotRunning(f"compose {job.compose_id}: {UNREADABLE}")
            allowed = max(reserved - sent, 0) if size is None else size
            most = reserved * (connection.execute(attempts).scalar_one() + 1)
            if sent + allowed > most:
                raise BudgetExceeded(
                    f"the files of compose {job.compose_id} would have {sent + allowed} bytes; its plan makes"
                    f" at most {reserved}, so {most} are allowed by now"
                )
            update = sa.update(COMPOSES).where(is_running).values(sent_bytes=sent + allowed)
            connection.execute(update)
            check_budget(connection, job.tenant, self._budget)
            connection.execute(insert.on_conflict_do_nothing())
            return allowed

        return self._database.transact(work)

    def give_back(self, job: Job, size: int) -> None:
        """Record that bytes were announced and not stored."""
        is_running = (COMPOSES.c.id == job.compose_id) & UNFINISHED
        self._execute(sa.update(COMPOSES).where(is_running).values(sent_bytes=COMPOSES.c.sent_bytes - size))

    def add_artifact(
        self, job_id: str, attempt: int, artifact: Artifact, kept_bytes: int | None = None
    ) -> bool:
        """Record an uploaded file of an attempt, which is not accepted yet.

        The artifact replaces one of its name; its key is one that no upload before has used.

        Args:
            kept_bytes: in the object store; None: its size.

        Returns:
            False: the attempt is not the latest one, or has ended; the object is discarded.
        """
        now = self._now()
        kept_bytes = artifact.size if kept_bytes is None else kept_bytes
        tenant = sa.select(JOBS.c.tenant).where(JOBS.c.id == job_id)
        of_its_name = sa.and_(
            ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.attempt == attempt, ARTIFACTS.c.name == artifact.name
        )

        abandoned = {"after": now, "kept_bytes": kept_bytes}
        abandon = (
            self._database.insert(DISCARDED)
            .values(key=artifact.key, **abandoned)
            .on_conflict_do_update(index_elements=[DISCARDED.c.key], set_=abandoned)
        )

        def work(connection: sa.Connection) -> bool:
            if connection.execute(running_attempt(job_id, attempt).values(id=job_id)).rowcount:
                connection.execute(undiscard([artifact.key]))
                discard(self._database, connection, now, of_its_name)
                tagged = self._cipher.tag_artifact(connection.execute(tenant).scalar_one(), job_id, artifact)
                row = {"job_id": job_id, "attempt": attempt, **attrs.asdict(tagged), "kept_bytes": kept_bytes}
                connection.execute(sa.insert(ARTIFACTS), row)
                return True
            connection.execute(abandon)
            return False

        return self._database.transact(work)

    def find_artifacts(self, job_id: str, attempt: int) -> list[Artifact]:
        """Return the uploaded files of an attempt."""
        columns = [ARTIFACTS.c[field.name] for field in attrs.fields(Artifact)]
        select = sa.select(*columns).where(ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.attempt == attempt)
        rows = self._database.transact(
            lambda connection: connection.execute(select.order_by(ARTIFACTS.c.name)).all()
        )
        return [Artifact(*row) for row in rows]

    def find_discarded(self, limit: int) -> list[str]:
        """Return keys of objects that nothing refers to any more, to be deleted from the object store."""
        select = sa.select(DISCARDED.c.key).where(DISCARDED.c.after <= self._now()).limit(limit)
        return list(self._database.transact(lambda connection: connection.scalars(select).all()))

    def forget_discarded(self, keys: Collection[str]) -> bool:
        """Record that objects were deleted; False: no row has one of these keys."""
        return self._execute(undiscard(keys)) > 0

    def _execute(self, statement: sa.Executable) -> int:
        return self._database.transact(lambda connection: connection.execute(statement).rowcount)
