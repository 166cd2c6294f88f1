from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from image_service.jobs.database.tables import open_database
from tests.jobs.dispatch.dispatching import Dispatching

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.jobs.dispatch.dispatching import OpenDispatching


@pytest.fixture
def open_dispatching(reactor: EPollReactor, tmp_path: Path) -> Iterator[OpenDispatching]:
    """Open the parts of dispatching with the given settings; their databases are closed in the end."""
    with ExitStack() as databases:

        def open_(**settings: Any) -> Dispatching:
            database = databases.enter_context(closing(open_database(None, tmp_path)))
            return Dispatching.over(database, reactor, tmp_path, **settings)

        yield open_
