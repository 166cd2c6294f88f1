"""A database that is closed while threads use it closes their connections too."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.common.database.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from image_service.common.database.database import Database

THREADS = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path / "a.sqlite", sa.MetaData(), 1)
    return PostgresqlDatabase(request.getfixturevalue("postgres").create_database(), sa.MetaData(), 1)


@pytest.fixture
def opened() -> Iterator[set[int]]:
    """The connections that are open."""
    opened: set[int] = set()

    def note_connect(connection: Any, _: object) -> None:
        opened.add(id(connection))

    def note_close(connection: Any, _: object) -> None:
        opened.remove(id(connection))

    noted: dict[str, Callable[..., None]] = {"connect": note_connect, "close": note_close}
    for name, note in noted.items():
        event.listen(sa.Pool, name, note)
    yield opened
    for name, note in noted.items():
        event.remove(sa.Pool, name, note)


def test_connections_in_use_are_closed_after_their_transactions(database: Database, opened: set[int]) -> None:
    running, closed = threading.Barrier(THREADS + 1), threading.Event()

    def work(connection: sa.Connection) -> object:
        running.wait(60)
        assert closed.wait(60)
        return connection.exec_driver_sql("SELECT 1").scalar_one()

    database.transact(lambda _: None)
    with ThreadPoolExecutor(THREADS) as pool:
        results = [pool.submit(database.transact, work) for _ in range(THREADS)]
        running.wait(60)
        database.close()
        assert len(opened) == THREADS
        closed.set()
        assert [result.result() for result in results] == [1] * THREADS
    assert not opened


def test_connection_of_a_transaction_that_fails_is_closed_too(database: Database, opened: set[int]) -> None:
    def close_and_fail(_: sa.Connection) -> None:
        database.close()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.transact(close_and_fail)
    assert not opened


def test_a_later_transaction_closes_its_connection(database: Database, opened: set[int]) -> None:
    database.transact(lambda _: None)
    assert opened
    database.close()
    assert not opened
    assert database.transact(lambda connection: connection.exec_driver_sql("SELECT 1").scalar_one()) == 1
    assert not opened
