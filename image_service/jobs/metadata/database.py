"""The database of the jobs role: an SQLite file, or PostgreSQL, beside the tables of snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.common.database.sqlite import SqliteDatabase
from image_service.jobs.metadata.tables import TABLES, VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.common.database.database import Database

DATABASE_FILE = "jobs.sqlite"
_BUSY_SECONDS = 10.0
"""No later call repeats a write, so a writer waits as long as a client does."""


def open_database(url: str | None, data_dir: Path) -> Database:
    """Return the database with the tables of the jobs role; it connects when it is first used.

    Args:
        url: ``postgresql+psycopg://``; None: ``jobs.sqlite`` in `data_dir`.
        data_dir: an existing directory.
    """
    if url is None:
        return SqliteDatabase(data_dir / DATABASE_FILE, TABLES, VERSION, busy_seconds=_BUSY_SECONDS)
    return PostgresqlDatabase(url, TABLES, VERSION, version_table="image_service_jobs_version")
