"""Operations over an empty database."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.database.tables import open_database
from tests.jobs.conversion_tasks.operating import Operating
from tests.jobs.database.composing import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    """The repositories."""
    with closing(open_database(None, tmp_path)) as database:
        yield Rows(database)


@pytest.fixture
def operating(rows: Rows) -> Operating:
    """The operations."""
    return Operating(rows)
