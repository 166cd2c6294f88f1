"""A database of each kind."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from image_service.jobs.database.tables import TABLES, open_database
from tests.jobs.database.composing import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import PostgresServer


@pytest.fixture(scope="module")
def postgresql_url(postgres: PostgresServer) -> str:
    """A database of the module: to empty its tables takes a quarter of what another database takes."""
    return postgres.create_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    """The repositories in an empty database."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with closing(open_database(url, tmp_path)) as database:
        if url:
            database.transact(truncate)
        yield Rows(database)


def truncate(connection: sa.Connection) -> None:
    """Empty all tables, and begin their sequences anew."""
    connection.execute(sa.text(f"TRUNCATE {', '.join(TABLES.tables)} RESTART IDENTITY"))
