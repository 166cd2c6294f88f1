"""The objects that jobs store. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import sqlalchemy as sa

from image_service.jobs.database.statements import discard, running_attempt, undiscard, utc_now
from image_service.jobs.database.tables import ARTIFACTS, DISCARDED
from image_service.jobs.model import Artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from image_service.common.database.database import Database

ABANDONED = timedelta(days=1)
"""Until the deletion of an object that did not become an artifact; uploads end before."""


class ObjectRepository:
    """The uploaded files of attempts, and the objects to delete.

    Args:
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def announce_object(self, key: str) -> None:
        """Record, before an object is stored, that it is to be deleted unless it becomes an artifact."""
        insert = self._database.insert(DISCARDED).values(key=key, after=self._now() + ABANDONED)
        self._execute(insert.on_conflict_do_nothing())

    def add_artifact(self, job_id: str, attempt: int, artifact: Artifact) -> bool:
        """Record an uploaded file of an attempt, which is not accepted yet.

        The artifact replaces one of its name; its key is one that no upload before has used.

        Returns:
            False: the attempt is not the latest one, or has ended; the object is discarded.
        """
        now = self._now()
        row = {"job_id": job_id, "attempt": attempt, **attrs.asdict(artifact)}
        of_its_name = sa.and_(
            ARTIFACTS.c.job_id == job_id, ARTIFACTS.c.attempt == attempt, ARTIFACTS.c.name == artifact.name
        )

        def work(connection: sa.Connection) -> bool:
            connection.execute(undiscard([artifact.key]))
            if connection.execute(running_attempt(job_id, attempt).values(id=job_id)).rowcount:
                discard(self._database, connection, now, of_its_name)
                connection.execute(sa.insert(ARTIFACTS), row)
                return True
            connection.execute(sa.insert(DISCARDED), {"key": artifact.key, "after": now})
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

    def forget_discarded(self, keys: Collection[str]) -> None:
        """Record that objects were deleted."""
        self._execute(undiscard(keys))

    def _execute(self, statement: sa.Executable) -> None:
        self._database.transact(lambda connection: connection.execute(statement).close())
