"""The rows of registered workers. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.jobs.database.statements import utc_now
from image_service.jobs.database.tables import UNKNOWN_ISOLATION, WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from image_service.common.database.database import Database


class WorkerRepository:
    """Workers that have registered.

    Args:
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def add(self, worker_id: str, tenant: str, architecture: str, isolation: str = UNKNOWN_ISOLATION) -> None:
        """Record a worker."""
        row = {
            "id": worker_id,
            "tenant": tenant,
            "architecture": architecture,
            "isolation": isolation,
            "seen_at": self._now(),
        }
        self._change(sa.insert(WORKERS).values(row))

    def see(self, worker_id: str, tenant: str) -> bool:
        """Record that a worker is alive; False: it is not known, or of another tenant."""
        is_known = (WORKERS.c.id == worker_id) & (WORKERS.c.tenant == tenant)
        return self._change(sa.update(WORKERS).where(is_known).values(seen_at=self._now()))

    def count(self, seen_since: datetime) -> Mapping[tuple[str, str], int]:
        """Return how many workers there are by tenant and architecture."""
        counts: Counter[tuple[str, str]] = Counter()
        for (tenant, architecture, _), number in self.count_by_isolation(seen_since).items():
            counts[tenant, architecture] += number
        return counts

    def count_by_isolation(self, seen_since: datetime) -> Mapping[tuple[str, str, str], int]:
        """Return how many workers there are by tenant, architecture and isolation of their programs."""
        kind = (WORKERS.c.tenant, WORKERS.c.architecture, WORKERS.c.isolation)
        count = sa.select(*kind, sa.func.count()).where(WORKERS.c.seen_at >= seen_since).group_by(*kind)
        rows = self._database.transact(lambda connection: connection.execute(count).all())
        return {(row[0], row[1], row[2]): row[3] for row in rows}

    def remove(self, seen_before: datetime) -> None:
        """Remove workers that were not seen since."""
        self._change(sa.delete(WORKERS).where(WORKERS.c.seen_at < seen_before))

    def _change(self, statement: sa.Executable) -> bool:
        return self._database.transact(lambda connection: connection.execute(statement).rowcount > 0)
