"""Replicas that store the same mounts at once wait for each other in turn, and not in a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.server.snapshots.storage.repository import StoredMount
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from tests.pytwisted import ensure_deferred
from tests.server.snapshots.repositories import Threads, postgresql_database

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from tests.postgres import PostgresServer

MOUNTS = [StoredMount(reader, b"key", 1, "0" * 64, 1.0, 0.0) for reader in (b"c", b"a", b"b")]
_LOCKED = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
_LOCK = "SELECT 1 FROM mounts WHERE reader = %s FOR UPDATE NOWAIT"


@ensure_deferred
async def test_mounts_are_locked_in_the_order_of_their_readers(
    reactor: EPollReactor, postgres: PostgresServer
) -> None:
    url = postgres.create_database()
    threads, database = Threads(reactor, 1), postgresql_database(url)
    repository = SqlRepository(database, threads, threads, StoreLimits(2**30, 60.0))
    await repository.save_mounts(MOUNTS, 1.0)
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        other.execute(_LOCK, [b"a"])
        saving = Deferred.fromCoroutine(repository.save_mounts(MOUNTS, 2.0))
        while other.execute(_LOCKED).fetchone() == (0,):
            await deferLater(reactor, 0.01)
        locked = [_is_locked(url, reader) for reader in (b"b", b"c")]
    await saving
    await repository.close()
    threads.stop()
    assert not any(locked)


def _is_locked(url: str, reader: bytes) -> bool:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        try:
            connection.execute(_LOCK, [reader])
        except psycopg.errors.LockNotAvailable:
            return True
    return False
