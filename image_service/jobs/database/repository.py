"""What the repositories of rows have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.jobs.database.statements import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from image_service.common.database.database import Database


class Repository:
    """Rows of a database. Every call blocks: not for the reactor's thread.

    Args:
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now
