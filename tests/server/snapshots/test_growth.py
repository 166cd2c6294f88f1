"""The first request of an infra-env costs no more where many others are stored."""

from __future__ import annotations

import re
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, cast
from uuid import UUID

import attrs
import pytest

from bench.growth import fill
from image_service.common.database import postgresql
from image_service.common.database.sqlite import SqliteDatabase
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE, SCHEMA_VERSION, TABLES
from tests.common.database.statements import explain, recorded
from tests.server.snapshots.doubles import REF, WINDOW_SECONDS
from tests.server.snapshots.mounting import Client, restart
from tests.server.snapshots.outcomes import outcome, run_now
from tests.server.snapshots.repositories import postgresql_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.common.database.database import Database
    from tests.postgres import PostgresServer
    from tests.server.snapshots.doubles import World
    from tests.server.snapshots.memory import MemoryRepository

FEW, MANY = 3, 300
LIMITS = StoreLimits(2 << 20, WINDOW_SECONDS)
"""Many take more than half of the room."""
WRITTEN_ROWS = re.compile(r"SCAN (snapshots|payloads|mounts|links)\b")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        made: Database = SqliteDatabase(tmp_path / DATABASE_FILE, TABLES, SCHEMA_VERSION)
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres")
        made = postgresql_database(postgres.create_database())
    with closing(made):
        yield made


def use_database(world: World, database: Database) -> None:
    """Let a world store in a database, as a process that has just started."""
    store = SqlRepository(database, run_now, run_now, LIMITS, world.get_wall_time)
    world.store = cast("MemoryRepository", store)
    restart(world)


def first_request(world: World, number: int) -> None:
    """Let a client begin to read the image of an infra-env, and have all of that stored."""
    Client(world, ref=attrs.evolve(REF, infra_env_id=str(UUID(int=number)))).range()
    outcome(world.images.save())


def test_first_request_sends_as_many_statements_with_many_infra_envs(
    world: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_database(world, database)
    sent = []
    for number, infra_envs in ((1, FEW), (3, MANY - FEW)):
        fill(database, infra_envs, world.get_wall_time())
        with monkeypatch.context() as patch:
            patch.setattr(postgresql, "ESTIMATE_SECONDS", 0)
            first_request(world, number)  # which counts the rows
            patch.setattr(postgresql, "ESTIMATE_SECONDS", inf)
            with recorded(database) as statements:
                first_request(world, number + 1)
        sent.append([statement for statement, _ in statements])
    assert sent[0] == sent[1]
    assert 0 < len(sent[0]) < 30


def test_no_statement_of_a_first_request_reads_all_rows(world: World, tmp_path: Path) -> None:
    with closing(SqliteDatabase(tmp_path / DATABASE_FILE, TABLES, SCHEMA_VERSION)) as database:
        use_database(world, database)
        with recorded(database) as statements:
            first_request(world, 1)
        plans = [explain(database, *each) for each in statements if not each[0].startswith("PRAGMA")]
    assert len(plans) > 5
    assert not [plan for plan in plans if WRITTEN_ROWS.search(plan)]
