from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.engine.driver import Driver
from tests.jobs.engine.servers import EngineServer, running_engine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine on SQLite, for all tests of a process."""
    with running_engine(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture
def driver(engine_server: EngineServer) -> Iterator[Driver]:
    with Driver(engine_server.address).running() as found:
        yield found
