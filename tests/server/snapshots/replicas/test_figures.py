"""What each replica does, in a real PostgreSQL."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.database import REPLICA_FIGURES, open_replica_database
from image_service.server.snapshots.replicas.figures import FORGOTTEN_SECONDS, FigureExchange
from tests.server.snapshots.outcomes import outcome, run_now

if TYPE_CHECKING:
    from image_service.common.database.postgresql import PostgresqlDatabase
    from tests.postgres import PostgresServer


@pytest.fixture(autouse=True)
def no_replicas(replica_database: PostgresqlDatabase) -> None:
    replica_database.transact(lambda connection: connection.execute(sa.delete(REPLICA_FIGURES)).close())


def pass_time(database: PostgresqlDatabase, seconds: float) -> None:
    """Make all rows older."""
    earlier = REPLICA_FIGURES.c.seen_at - timedelta(seconds=seconds)
    update = sa.update(REPLICA_FIGURES).values(seen_at=earlier)
    database.transact(lambda connection: connection.execute(update).close())


def exchanged(exchange: FigureExchange, replica_id: str, machines: int) -> dict[str, tuple[int, int]]:
    """Exchange; return machines and age of each replica by its id."""
    seen = outcome(exchange.exchange(replica_id, {"machines": machines}))
    return {each.id: (each.figures["machines"], round(each.age_seconds)) for each in seen}


def test_each_replica_reads_the_latest_row_of_all(replica_database: PostgresqlDatabase) -> None:
    one, other = (FigureExchange(replica_database, run_now) for _ in range(2))
    assert exchanged(one, "a", 1) == {"a": (1, 0)}
    pass_time(replica_database, 40)
    assert exchanged(other, "b", 2) == {"a": (1, 40), "b": (2, 0)}
    assert exchanged(one, "a", 3) == {"a": (3, 0), "b": (2, 0)}


def test_replica_that_leaves_is_not_seen_and_one_that_is_lost_is_forgotten(
    replica_database: PostgresqlDatabase,
) -> None:
    one, other = (FigureExchange(replica_database, run_now) for _ in range(2))
    exchanged(one, "a", 1)
    exchanged(other, "b", 2)
    outcome(one.leave())
    assert exchanged(other, "b", 2) == {"b": (2, 0)}
    exchanged(one, "a", 1)
    pass_time(replica_database, FORGOTTEN_SECONDS + 1)
    assert exchanged(other, "b", 2) == {"b": (2, 0)}


def test_database_that_is_away_is_said_and_leaving_does_not_fail(
    replica_database: PostgresqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise StoreFailed("it is away")

    exchange = FigureExchange(replica_database, run_now)
    monkeypatch.setattr(replica_database, "transact", fail)
    with pytest.raises(StoreFailed):
        exchanged(exchange, "a", 1)
    outcome(exchange.leave())


def test_tables_of_the_version_before_get_the_new_one(postgres: PostgresServer) -> None:
    def forget(connection: sa.Connection) -> None:
        REPLICA_FIGURES.drop(connection)
        connection.exec_driver_sql("UPDATE image_service_version SET version = 2")

    url = postgres.create_database()
    with closing(open_replica_database(url)) as before:
        before.transact(forget)
    with closing(open_replica_database(url)) as database:
        assert exchanged(FigureExchange(database, run_now), "a", 1) == {"a": (1, 0)}
