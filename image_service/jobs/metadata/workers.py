"""The rows of registered workers. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from image_service.database.database import Database


class WorkerRepository:
    """Workers that have registered.

    Args:
        database: see ``open_database``.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        raise NotImplementedError

    def add(self, worker_id: str, tenant: str, architecture: str) -> None:
        """Record a worker."""
        raise NotImplementedError

    def see(self, worker_id: str, tenant: str) -> bool:
        """Record that a worker is alive; False: it is not known, or of another tenant."""
        raise NotImplementedError

    def count(self, seen_since: datetime) -> Mapping[tuple[str, str], int]:
        """Return how many workers there are by tenant and architecture."""
        raise NotImplementedError

    def remove(self, seen_before: datetime) -> None:
        """Remove workers that were not seen since."""
        raise NotImplementedError
