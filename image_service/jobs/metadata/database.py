"""The database of the jobs role: an SQLite file, or PostgreSQL, beside the tables of snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.database.database import Database


def open_database(url: str | None, data_dir: Path) -> Database:
    """Return the database with the tables of the jobs role; it connects when it is first used.

    Args:
        url: ``postgresql+psycopg://``; None: ``jobs.sqlite`` in `data_dir`.
        data_dir: an existing directory.
    """
    raise NotImplementedError
