"""The rows of registered workers. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.core.errors import Unavailable
from image_service.jobs.database.repository import Repository
from image_service.jobs.database.statements import lock_tenant
from image_service.jobs.database.tables import UNKNOWN_ISOLATION, WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


MAX_WORKERS_OF_TENANT = 1000
_RETRY_AFTER_SECONDS = 60


class WorkerRepository(Repository):
    """Workers that have registered."""

    def add(self, worker_id: str, tenant: str, architecture: str, isolation: str = UNKNOWN_ISOLATION) -> None:
        """Record a worker.

        Raises:
            Unavailable: its tenant has `MAX_WORKERS_OF_TENANT`, some of which may be lost.
        """
        row = {
            "id": worker_id,
            "tenant": tenant,
            "architecture": architecture,
            "isolation": isolation,
            "seen_at": self._now(),
        }
        of_tenant = sa.select(sa.func.count()).select_from(WORKERS).where(WORKERS.c.tenant == tenant)

        def work(connection: sa.Connection) -> None:
            lock_tenant(self._database, connection, tenant)
            if connection.execute(of_tenant).scalar_one() >= MAX_WORKERS_OF_TENANT:
                detail = f"this tenant has {MAX_WORKERS_OF_TENANT} workers, counting lost ones"
                raise Unavailable(detail, retry_after_seconds=_RETRY_AFTER_SECONDS)
            connection.execute(sa.insert(WORKERS), row)

        self._database.transact(work)

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
