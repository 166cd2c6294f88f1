from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.engine.driver import Driver
from tests.jobs.engine.servers import EngineServer, running_cluster, running_engine
from tests.postgres import running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def engine_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    """An engine for all tests of a process: as the role's child, or as a server on PostgreSQL."""
    directory = tmp_path_factory.mktemp("engine")
    if request.param == "sqlite":
        with running_engine(directory) as server:
            yield server
    else:
        with running_postgres() as postgres, running_cluster(directory, postgres) as server:
            yield server


@pytest.fixture
def driver(engine_server: EngineServer) -> Iterator[Driver]:
    with Driver(engine_server.address).running() as found:
        yield found
