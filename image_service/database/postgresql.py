"""PostgreSQL databases, shared by the replicas of a service; they hold nothing that this package may replace.

The tables are created, or brought to this release's version, before the first transaction, by one replica at
a time. Migrations only add, so that a replica of the release before goes on with the tables: a version is
refused only if its ``oldest_reader`` is later than this release's version.
"""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as postgresql_dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from image_service.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

POOL_SIZE = 4
"""Connections of one process: replicas * workers * 4 of the server's ``max_connections``."""
CONNECT_SECONDS = 2
"""libpq waits for whole seconds, and for two at least."""
STATEMENT_SECONDS = 5
"""The server ends a statement, or a wait for a lock, after that; callers have given up before."""
_MIGRATION_LOCK = 0x696D6167652D7376
"""Of ``pg_advisory_xact_lock``: any number that other programs in the database do not use."""
_CONNECT_ARGUMENTS = {
    "application_name": "image-service",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_OPTIONS = f"-c statement_timeout={STATEMENT_SECONDS}s"
_LINE_END = "\n"
_VERSIONS = sa.Table(
    "image_service_version",
    sa.MetaData(),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("oldest_reader", sa.Integer, nullable=False),  # the oldest version that may use the tables
)


class PostgresqlDatabase:
    """A database of a server. See ``Database``.

    Args:
        url: ``postgresql+psycopg://``; it may hold a password, which no error repeats.
        tables: created in a database that has none.
        version: of the tables, from 1.
        migrations: each brings the tables from a version to the next, and only adds.
        stored_bytes: selects what the rows of the tables occupy: the size of the files does not shrink.
        has_pooler: True behind a connection pooler that runs each transaction on another connection.
    """

    def __init__(  # noqa: PLR0913 - what a schema consists of
        self,
        url: str,
        tables: sa.MetaData,
        version: int,
        migrations: Mapping[int, Callable[[sa.Connection], None]] = MappingProxyType({}),
        *,
        stored_bytes: sa.Select[int],
        has_pooler: bool = False,
    ) -> None:
        parsed = sa.make_url(url)
        self._name = f"PostgreSQL database {parsed.database} at {parsed.host}"
        self._tables = tables
        self._version = version
        self._migrations = migrations
        self._stored_bytes = stored_bytes
        self._prepared = threading.Event()
        self._preparing = threading.Lock()
        # Prepared statements and options belong to a connection, and a pooler exchanges those.
        own = {"prepare_threshold": None} if has_pooler else {"options": _OPTIONS}
        self._engine = sa.create_engine(
            parsed,
            connect_args={**_CONNECT_ARGUMENTS, **own},
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=STATEMENT_SECONDS,
        )

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        """Run work in one transaction; again, if a kept connection turns out to be closed."""
        try:
            if not self._prepared.is_set():
                self._prepare()
            try:
                return self._run(work)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return self._run(work)
        except SQLAlchemyError as error:
            reason = str(error.orig if isinstance(error, DBAPIError) else error)
            # The lines after the first, and the context, may quote rows.
            raise StoreFailed(f"{self._name}: {reason.strip().partition(_LINE_END)[0]}") from None

    def insert(self, table: sa.Table) -> postgresql_dialect.Insert:
        """Return PostgreSQL's insert."""
        return postgresql_dialect.insert(table)

    def used_bytes(self, connection: sa.Connection) -> int:
        """Return what the rows occupy."""
        return connection.execute(self._stored_bytes).scalar_one()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)

    def _prepare(self) -> None:
        """Create or migrate the tables, unless they are of this version."""
        with self._preparing:
            if self._prepared.is_set():
                return
            with self._engine.begin() as connection:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                self._migrate(connection)
            self._prepared.set()

    def _migrate(self, connection: sa.Connection) -> None:
        _VERSIONS.create(connection, checkfirst=True)
        found = connection.execute(sa.select(_VERSIONS)).first()
        if found is None:
            self._tables.create_all(connection)
            connection.execute(
                sa.insert(_VERSIONS), {"version": self._version, "oldest_reader": self._version}
            )
            return
        if found.oldest_reader > self._version:
            raise StoreFailed(
                f"{self._name} has version {found.version}, this release supports {self._version}"
            )
        for before in range(found.version, self._version):
            self._migrations[before](connection)
        if found.version < self._version:
            connection.execute(sa.update(_VERSIONS).values(version=self._version))
