"""Repositories of snapshots for tests: with threads, and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.server.snapshots.build_snapshots import open_repository
from image_service.server.snapshots.storage.sql_statements import SCHEMA_VERSION, STORED_BYTES, TABLES
from image_service.settings.upstream import SnapshotSettings
from tests.server.snapshots.outcomes import run_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.defer import Deferred
    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.snapshots.storage.sql_repository import SqlRepository

T = TypeVar("T")


class Threads:
    """Threads for the time of a test."""

    def __init__(self, reactor: EPollReactor, number: int) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(0, number, "store")
        self._pool.start()

    def __call__(self, work: Callable[[], T], /) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._pool, work)

    def stop(self) -> None:
        self._pool.stop()


def postgresql_database(url: str) -> PostgresqlDatabase:
    """Return a database with the tables of snapshots."""
    return PostgresqlDatabase(url, TABLES, SCHEMA_VERSION, stored_bytes=STORED_BYTES)


def repository_in(directory: Path, **settings: Any) -> SqlRepository:
    """Return a repository that waits for the disk in the calling thread."""
    return open_repository(directory, run_now, run_now, SnapshotSettings(**settings))
