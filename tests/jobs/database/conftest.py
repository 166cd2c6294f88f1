"""A database of each kind."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.database.tables import open_database
from tests.jobs.database.composing import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    """The repositories in an empty database."""
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.create_database()
    with closing(open_database(url, tmp_path)) as database:
        yield Rows(database)
