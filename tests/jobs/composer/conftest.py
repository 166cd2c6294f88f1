"""The composer API on an empty database."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.database.tables import open_database
from image_service.jobs.plans.plan import UploadPlace
from tests.jobs.composer.composing import Composer
from tests.jobs.database.composing import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def composer(tmp_path: Path) -> Iterator[Composer]:
    with closing(open_database(None, tmp_path)) as database:
        yield Composer(Rows(database), UploadPlace("images", "made"))
