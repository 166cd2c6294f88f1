"""PostgreSQL, beyond the contract of snapshot repositories: replicas share it, and it may be unreachable."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from image_service.common.database import postgresql
from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.core.errors import InvalidRequest, StoreFailed
from tests.common.database.statements import recorded
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import PostgresServer

TABLES = sa.MetaData()
NUMBERS = sa.Table("numbers", TABLES, sa.Column("number", sa.Integer, primary_key=True))
STORED_BYTES = sa.select(sa.func.count() * 100).select_from(NUMBERS)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def database(url: str) -> Iterator[PostgresqlDatabase]:
    with closing(open_database(url)) as database:
        yield database


def open_database(
    url: str,
    version: int = 1,
    migrations: dict[int, Callable[[sa.Connection], None]] | None = None,
) -> PostgresqlDatabase:
    return PostgresqlDatabase(url, TABLES, version, migrations or {}, stored_bytes=STORED_BYTES)


def add(number: int) -> Callable[[sa.Connection], None]:
    return lambda connection: connection.execute(sa.insert(NUMBERS), {"number": number}).close()


def count(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(NUMBERS)).scalar_one()


def test_transaction_is_kept_whole(database: PostgresqlDatabase) -> None:
    def add_and_fail(connection: sa.Connection) -> None:
        add(2)(connection)
        raise ZeroDivisionError

    database.transact(add(1))
    with pytest.raises(ZeroDivisionError):
        database.transact(add_and_fail)
    assert database.transact(count) == 1


@pytest.mark.parametrize(
    "statement",
    [
        sa.select(NUMBERS).where(sa.cast(NUMBERS.c.number, sa.Text) == "a\0b"),
        sa.update(NUMBERS).values(number=2**40),
    ],
    ids=["nul", "large"],
)
def test_value_that_cannot_be_stored_is_a_fault_of_its_request(
    database: PostgresqlDatabase, statement: sa.Executable
) -> None:
    database.transact(add(1))
    with pytest.raises(InvalidRequest):
        database.transact(lambda connection: connection.execute(statement).close())
    assert database.transact(count) == 1


def test_bytes_are_counted_at_the_limit_and_estimated_far_below_it(database: PostgresqlDatabase) -> None:
    def missing(needed: int, limit: int) -> int:
        return database.transact(lambda connection: database.missing_bytes(connection, needed, limit))

    database.transact(add(1))
    assert missing(50, 1000) == 150 - 1000
    database.transact(add(2))
    assert missing(50, 1000) == 200 - 1000  # what was counted, and what was added
    assert missing(350, 1000) == 550 - 1000  # more than an eighth of the room: counted


def test_bytes_are_not_counted_for_each_row_above_half_of_the_limit(
    database: PostgresqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "ESTIMATE_SECONDS", inf)
    for number in range(7):
        database.transact(add(number))

    def write(connection: sa.Connection) -> int:
        return database.missing_bytes(connection, 1, 1000)

    database.transact(write)
    with recorded(database) as statements:
        assert [database.transact(write) for _ in range(30)] == list(range(702 - 1000, 732 - 1000))
    assert not [statement for statement, _ in statements if "count(" in statement]


def test_replicas_that_start_at_once_create_the_tables_once(url: str) -> None:
    replicas = [open_database(url) for _ in range(6)]
    with ThreadPoolExecutor(len(replicas)) as threads:
        list(threads.map(lambda each: each[1].transact(add(each[0])), enumerate(replicas)))
    for replica in replicas:
        assert replica.transact(count) == 6
        replica.close()


def test_tables_of_an_earlier_release_are_migrated_and_stay_usable_for_it(url: str) -> None:
    with closing(open_database(url)) as before:
        before.transact(add(1))
        migrated = []
        with closing(open_database(url, 2, {1: lambda _: migrated.append(1)})) as after:
            assert after.transact(count) == 1
        with closing(open_database(url, 2, {1: lambda _: migrated.append(2)})) as again:
            again.transact(add(2))
        assert migrated == [1]
        before.transact(add(3))
    with closing(open_database(url)) as restarted:  # the release before, which a rollback starts
        assert restarted.transact(count) == 3


def test_tables_of_a_version_without_migration_are_refused(url: str, database: PostgresqlDatabase) -> None:
    database.transact(add(1))
    with (
        closing(open_database(url, 3, {2: lambda _: None})) as later,
        pytest.raises(StoreFailed, match="has version 1, this release supports 3"),
    ):
        later.transact(count)


def test_tables_that_this_release_cannot_read_are_refused(url: str, database: PostgresqlDatabase) -> None:
    database.transact(
        lambda connection: connection.exec_driver_sql(
            "UPDATE image_service_version SET version = 9, oldest_reader = 8"
        ).close()
    )
    with (
        closing(open_database(url)) as earlier,
        pytest.raises(StoreFailed, match="has version 9, this release supports 1"),
    ):
        earlier.transact(count)


def test_connection_that_the_server_closed_is_replaced(url: str, database: PostgresqlDatabase) -> None:
    database.transact(add(1))
    with closing(open_database(url)) as other:
        other.transact(
            lambda connection: connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).close()
        )
    database.transact(add(2))
    assert database.transact(count) == 2


def test_error_names_the_server_and_no_password() -> None:
    url = f"postgresql+psycopg://tester:top-secret@127.0.0.1:{free_port()}/images"
    with (
        closing(open_database(url)) as database,
        pytest.raises(StoreFailed, match=r"PostgreSQL database images at 127\.0\.0\.1") as raised,
    ):
        database.transact(count)
    assert "top-secret" not in raised.value.detail
    assert "refused" in raised.value.detail


def test_error_does_not_quote_rows(database: PostgresqlDatabase) -> None:
    database.transact(add(4711))
    with pytest.raises(StoreFailed, match="duplicate key") as raised:
        database.transact(add(4711))
    assert raised.value.__cause__ is None
    assert "4711" not in raised.value.detail


def test_transaction_at_a_server_that_hangs_is_aborted(
    postgres: PostgresServer, database: PostgresqlDatabase
) -> None:
    database.transact(add(1))
    with ThreadPoolExecutor(1) as threads, postgres.hanging():
        hanging = threads.submit(database.transact, count)
        while not hanging.done():  # it connects again meanwhile
            database.abort()
            time.sleep(0.01)
        with pytest.raises(StoreFailed):
            hanging.result()
    assert database.transact(count) == 1


def test_transaction_that_the_server_ends_for_another_one_runs_again(database: PostgresqlDatabase) -> None:
    database.transact(add(1))
    database.transact(add(2))
    both = threading.Barrier(2)

    def update(first: int, second: int) -> Callable[[sa.Connection], None]:
        attempts = iter((both.wait, int))

        def work(connection: sa.Connection) -> None:
            update = sa.update(NUMBERS).values(number=NUMBERS.c.number)
            connection.execute(update.where(NUMBERS.c.number == first))
            next(attempts, int)()
            connection.execute(update.where(NUMBERS.c.number == second))

        return work

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(database.transact, update(*pair)) for pair in ((1, 2), (2, 1))]:
            each.result()
