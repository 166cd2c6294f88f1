from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.database.tables import open_database
from tests.jobs.artifacts.composing_images import Artifacts
from tests.jobs.database.composing import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def artifacts(tmp_path: Path) -> Iterator[Artifacts]:
    with closing(open_database(None, tmp_path)) as database:
        made = Artifacts(Rows(database), tmp_path)
        yield made
        made.disks.close()
