"""Hosts of replicas: each with processes that coordinate over one PostgreSQL database."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.concurrency.coordination import SharedMemoryCoordination
from image_service.database.postgresql import PostgresqlDatabase
from image_service.snapshots.replicas.listener import Listener
from image_service.snapshots.replicas.tables import CLAIMS, REPLICA_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime


def replica_database(url: str, *, has_pooler: bool = False) -> PostgresqlDatabase:
    """Return a database with the tables of the coordination alone."""
    tables = sa.MetaData()
    for table in REPLICA_TABLES:
        table.to_metadata(tables)
    stored_bytes = sa.select(sa.func.count()).select_from(CLAIMS)
    return PostgresqlDatabase(url, tables, 1, stored_bytes=stored_bytes, has_pooler=has_pooler)


@contextmanager
def listening_host(
    url: str, database: PostgresqlDatabase, directory: Path, clock: IReactorTime
) -> Iterator[SharedMemoryCoordination]:
    """Return the counters of a host, which are kept in step until the block ends."""
    local = SharedMemoryCoordination.of_one_process(directory / "locks", clock)
    listener = Listener(url, database, local)
    listener.start()
    try:
        yield local
    finally:
        listener.stop()
