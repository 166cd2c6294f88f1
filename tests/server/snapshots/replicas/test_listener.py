"""Hosts that hear of each other through a real PostgreSQL, also through PgBouncer and after cuts."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import SIZE_BYTES, SharedMemoryCoordination
from image_service.server.snapshots.replicas import changes, listener
from image_service.server.snapshots.replicas.changes import KEY_BYTES
from tests.pgbouncer import running_pgbouncer
from tests.ports import free_port
from tests.server.snapshots.replicas.hosts import listening, make_replica_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from image_service.common.database.postgresql import PostgresqlDatabase
    from tests.conftest import LoggedFailures
    from tests.postgres import PostgresServer

WAIT_SECONDS = 60  # ten times what a busy machine needs
NOWHERE = "postgresql+psycopg://tester@127.0.0.1:{port}/none"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def database(url: str) -> Iterator[PostgresqlDatabase]:
    with closing(make_replica_database(url)) as database:
        yield database


@pytest.fixture
def pooled_url(postgres: PostgresServer, url: str) -> Iterator[str]:
    """The same database through PgBouncer."""
    with running_pgbouncer(postgres) as port:
        yield url.replace(f":{postgres.port}/", f":{port}/")


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def change(database: PostgresqlDatabase, key: bytes) -> None:
    changed = {key[:KEY_BYTES]: 1 + secrets.randbits(63)}
    database.transact(partial(changes.write, changed=changed))


def wait_for_change(database: PostgresqlDatabase, host: SharedMemoryCoordination) -> None:
    """Change a counter elsewhere, and wait until it has changed on this host."""
    key = secrets.token_bytes(32)
    before = host.counter(key)
    change(database, key)
    wait_until(lambda: host.counter(key) != before)


def cut_connections(database: PostgresqlDatabase) -> None:
    """Have the server close all connections but the one that asks for it."""
    database.transact(
        lambda connection: connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).close()
    )


@pytest.mark.parametrize("names", [("one", "other"), ("shared", "shared")])
def test_changes_of_others_are_heard(
    url: str, database: PostgresqlDatabase, tmp_path: Path, names: tuple[str, str]
) -> None:
    """Hosts may share their data directory."""
    with ExitStack() as running:
        hosts = [running.enter_context(listening(url, database, tmp_path / name)) for name in names]
        wait_until(lambda: all(host.is_notified for host in hosts))
        for host in hosts:
            wait_for_change(database, host)


def test_one_worker_of_a_host_listens_and_another_takes_over(
    url: str, database: PostgresqlDatabase, tmp_path: Path
) -> None:
    memory, locks = memoryview(bytearray(SIZE_BYTES)), tmp_path / "locks"
    workers = [SharedMemoryCoordination(memory, locks, Clock()) for _ in range(2)]
    with ExitStack() as second:
        with ExitStack() as first:
            first.enter_context(listening(url, database, tmp_path, workers[0]))
            wait_until(lambda: workers[1].is_notified)
            second.enter_context(listening(url, database, tmp_path, workers[1]))
            wait_for_change(database, workers[1])
            assert count_listeners(database) == 1
        wait_until(lambda: workers[0].is_notified)
        wait_for_change(database, workers[0])
        wait_until(lambda: count_listeners(database) == 1)  # the server notices late that the first has left


def count_listeners(database: PostgresqlDatabase) -> int:
    return database.transact(
        lambda connection: int(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '%%listener'"
            ).scalar_one()
        )
    )


def test_everything_counts_as_changed_after_a_lost_connection(
    url: str, database: PostgresqlDatabase, tmp_path: Path
) -> None:
    key = secrets.token_bytes(32)
    with listening(url, database, tmp_path) as host:
        wait_until(lambda: host.is_notified)
        before = host.counter(key)
        cut_connections(database)
        wait_until(lambda: host.counter(key) != before)
        wait_until(lambda: host.is_notified)
        wait_for_change(database, host)


def test_everything_counts_as_changed_after_a_restart_of_the_server(
    postgres: PostgresServer, url: str, database: PostgresqlDatabase, tmp_path: Path
) -> None:
    key = secrets.token_bytes(32)
    with listening(url, database, tmp_path) as host:
        wait_until(lambda: host.is_notified)
        before = host.counter(key)
        postgres.stop("immediate")
        try:
            wait_until(lambda: not host.is_notified)
            assert host.counter(key) == before, "nothing can be read again yet"
        finally:
            postgres.start()
        wait_until(lambda: host.counter(key) != before)
        wait_until(lambda: host.is_notified)
        wait_for_change(database, host)


def test_pooler_that_passes_no_notifications_on_is_noticed_and_changes_are_polled(
    pooled_url: str, tmp_path: Path, messages: list[str]
) -> None:
    with (
        closing(make_replica_database(pooled_url)) as database,
        listening(pooled_url, database, tmp_path) as host,
    ):
        wait_until(lambda: any("notifications do not arrive" in message for message in messages))
        for _ in range(3):
            wait_for_change(database, host)
        assert not host.is_notified


def test_changes_written_through_a_pooler_are_heard_at_the_server_itself(
    url: str, pooled_url: str, tmp_path: Path
) -> None:
    with (
        closing(make_replica_database(pooled_url)) as database,
        listening(url, database, tmp_path) as host,
    ):
        wait_until(lambda: host.is_notified)
        wait_for_change(database, host)


def test_changes_are_polled_where_the_server_cannot_be_listened_to(
    database: PostgresqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "POLL_SECONDS", 0.05)
    with listening(NOWHERE.format(port=free_port()), database, tmp_path) as host:
        key = secrets.token_bytes(32)
        before = host.counter(key)
        wait_until(lambda: host.counter(key) != before)  # everything counts as changed at first
        before = host.counter(key)
        for _ in range(3):
            wait_for_change(database, host)
        assert host.counter(key) == before, "other counters stay"
        assert not host.is_notified


def test_unexpected_error_does_not_end_the_listening(
    url: str,
    database: PostgresqlDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged_failures: LoggedFailures,
) -> None:
    monkeypatch.setattr(listener, "POLL_SECONDS", 0.05)
    with listening(url, database, tmp_path) as host:
        wait_until(lambda: host.is_notified)
        with monkeypatch.context() as faulty:
            faulty.setattr(changes, "parse", lambda _: 1 / 0)
            change(database, secrets.token_bytes(32))
            wait_until(lambda: bool(logged_failures.failures))
        wait_until(lambda: host.is_notified)
        wait_for_change(database, host)
    assert logged_failures.flush(ZeroDivisionError)


def test_change_that_arrives_with_the_echo_of_a_check_is_heard(
    url: str, database: PostgresqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, is_ready = secrets.token_bytes(32), threading.Event()
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.2)
    notify = changes.notify

    def change_and_notify(connection: sa.Connection, payload: str) -> None:
        if is_ready.is_set():
            changes.write(connection, {key[:KEY_BYTES]: 1 + secrets.randbits(63)})
        notify(connection, payload)

    monkeypatch.setattr(changes, "notify", change_and_notify)
    with listening(url, database, tmp_path) as host:
        wait_until(lambda: host.is_notified)
        before = host.counter(key)
        is_ready.set()
        wait_until(lambda: host.counter(key) != before)


def test_stop_does_not_wait_for_the_next_attempt(tmp_path: Path) -> None:
    url = NOWHERE.format(port=free_port())
    with closing(make_replica_database(url)) as database:
        started_at = time.monotonic()
        with listening(url, database, tmp_path):
            pass
        assert time.monotonic() - started_at < WAIT_SECONDS
