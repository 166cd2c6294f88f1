"""PostgreSQL databases, shared by the replicas of a service; they hold nothing that this package may replace.

The tables are created, or brought to this release's version, before the first transaction, by one replica at
a time. Migrations only add, so that a replica of the release before goes on with the tables: a version is
refused only if its ``oldest_reader`` is later than this release's version.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as postgresql_dialect
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError

from image_service.core.errors import InvalidRequest, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import psycopg

T = TypeVar("T")

POOL_SIZE = 4
"""Connections of one process, beside one for LISTEN; the server's ``max_connections`` are for all."""
CONNECT_SECONDS = 2
"""libpq waits for whole seconds, and for two at least."""
STATEMENT_SECONDS = 5
"""The server ends a statement, or a wait for a lock, after that; callers have given up before."""
ATTEMPTS = 3
"""Of a transaction that the server has ended for another one, or whose connection turns out to be closed."""
ESTIMATE_SECONDS = 2.0
"""How long a count of the bytes that rows occupy is used, unless this process adds much meanwhile."""
ROOM_SHARE = 8
"""Much is more than this part of the room that was left: so many processes may add it at the same time."""
_MIGRATION_LOCK = 0x696D6167652D7376
"""Of ``pg_advisory_xact_lock``: any number that other programs in the database do not use."""
CONNECT_ARGUMENTS = {
    "application_name": "image-service",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
    # A pooler exchanges connections between transactions, and prepared statements belong to one.
    "prepare_threshold": None,
}
# For the transaction only: a pooler takes no such option when a connection starts.
_LIMIT = f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'"
_RETRIED = {"40001", "40P01"}
"""SQLSTATE of a serialization failure and of a deadlock: another transaction was in the way."""
# The pool prints a traceback of each connection that was lost; those who use it get the error, too.
logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())
_VERSION_TABLE = "image_service_version"
_UNCOUNTED = sa.select(sa.literal(0))
_MAY_USE = sa.text(
    "SELECT to_regclass('image_service_version') IS NOT NULL"
    " OR coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
)


class PostgresqlDatabase:
    """A database of a server. See ``Database``.

    Args:
        url: ``postgresql+psycopg://``; it may hold a password, which no error repeats.
        tables: created in a database that has none.
        version: of the tables, from 1.
        migrations: each brings the tables from a version to the next, and only adds.
        stored_bytes: selects the bytes that the rows of the tables occupy; the files do not shrink.
        version_table: the name of the table that holds the version; other tables in the same database have
            versions of their own.
    """

    def __init__(  # noqa: PLR0913 - properties of a database
        self,
        url: str,
        tables: sa.MetaData,
        version: int,
        migrations: Mapping[int, Callable[[sa.Connection], None]] = MappingProxyType({}),
        *,
        stored_bytes: sa.Select[int] = _UNCOUNTED,
        version_table: str = _VERSION_TABLE,
    ) -> None:
        parsed = sa.make_url(url)
        self._name = f"PostgreSQL database {parsed.database} at {parsed.host}"
        self._tables = tables
        self._version = version
        self._migrations = migrations
        self._stored_bytes = stored_bytes
        self._versions = sa.Table(
            version_table,
            sa.MetaData(),
            sa.Column("version", sa.Integer, nullable=False),
            sa.Column("oldest_reader", sa.Integer, nullable=False),  # the oldest that may use the tables
        )
        self._counted = self._added = 0
        self._counted_at = -inf
        self._prepared = threading.Event()
        self._preparing = threading.Lock()
        self._is_closed = False
        self._running: dict[object, tuple[float, psycopg.Connection]] = {}
        self._engine = sa.create_engine(
            parsed,
            connect_args=CONNECT_ARGUMENTS,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=STATEMENT_SECONDS,
        )

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        """Run work in one transaction; again, if it was not to blame that the first attempt failed."""
        try:
            if not self._prepared.is_set():
                self._prepare()
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return self._run(work)
                except DBAPIError as error:
                    state = getattr(error.orig, "sqlstate", None)
                    if attempt == ATTEMPTS or not (error.connection_invalidated or state in _RETRIED):
                        raise
            raise AssertionError
        except DataError:  # a NUL in a text, a number beyond its column: no fault of the database
            raise InvalidRequest("a value has characters that cannot be stored, or is too large") from None
        except SQLAlchemyError as error:
            raise StoreFailed(f"{self._name}: {_describe(error)}") from None
        finally:
            if self._is_closed:
                self._engine.pool.dispose()

    def insert(self, table: sa.Table) -> postgresql_dialect.Insert:
        """Return PostgreSQL's insert."""
        return postgresql_dialect.insert(table)

    def missing_bytes(self, connection: sa.Connection, needed_bytes: int, max_bytes: int) -> int:
        """Return by how many bytes the rows exceed the limit once a transaction has added some.

        PostgreSQL reads all rows to count their bytes. This process counts them again after
        `ESTIMATE_SECONDS`, or when it has added more than a part of the room that was left (`ROOM_SHARE`).
        """
        self._added += needed_bytes
        is_recent = time.monotonic() < self._counted_at + ESTIMATE_SECONDS
        if not is_recent or self._added > (max_bytes - self._counted) // ROOM_SHARE:
            self._counted, self._added = connection.execute(self._stored_bytes).scalar_one(), needed_bytes
            self._counted_at = time.monotonic()
        return self._counted + self._added - max_bytes

    def close(self) -> None:
        """Close all connections. A transaction that is running, or begins later, closes its own."""
        self._is_closed = True
        self._engine.pool.dispose()  # not the engine's dispose, which would lose the pool of those in use

    def abort(self, running_seconds: float = 0.0) -> None:
        """Close the connections of transactions that run for so long: their threads get an error.

        A thread waits for a server that hangs for as long as the connection is there.
        """
        started_before = time.monotonic() - running_seconds
        closed = self._engine.dialect.loaded_dbapi.Error
        for started_at, connection in tuple(self._running.values()):
            if started_at <= started_before:
                with suppress(OSError, closed), socket.socket(fileno=os.dup(connection.fileno())) as own:
                    own.shutdown(socket.SHUT_RDWR)

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        with self._begin() as connection:
            connection.exec_driver_sql(_LIMIT)
            return work(connection)

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        token = object()
        with self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            self._running[token] = time.monotonic(), driver
            try:
                with connection.begin():
                    yield connection
            finally:
                del self._running[token]

    def _prepare(self) -> None:
        """Create or migrate the tables, unless they are of this version."""
        with self._preparing:
            if self._prepared.is_set():
                return
            with self._begin() as connection:
                connection.exec_driver_sql(_LIMIT)
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                self._migrate(connection)
            self._prepared.set()

    def _migrate(self, connection: sa.Connection) -> None:
        self._versions.create(connection, checkfirst=True)
        found = connection.execute(sa.select(self._versions)).first()
        if found is None:
            self._tables.create_all(connection)
            row = {"version": self._version, "oldest_reader": self._version}
            connection.execute(sa.insert(self._versions), row)
            return
        steps = range(found.version, self._version)
        if found.oldest_reader > self._version or not self._migrations.keys() >= set(steps):
            raise StoreFailed(
                f"{self._name} has version {found.version}, this release supports {self._version}"
            )
        for before in steps:
            self._migrations[before](connection)
        if found.version < self._version:
            connection.execute(sa.update(self._versions).values(version=self._version))


def check_database(url: str) -> str | None:
    """Connect once, as the user of a URL, so that a wrong one is known before a start; write nothing.

    Args:
        url: ``postgresql+psycopg://``; the returned text does not repeat its password.

    Returns:
        None: the database can be used. Else why not.
    """
    parsed = sa.make_url(url)
    name = f"PostgreSQL database {parsed.database} at {parsed.host}"
    engine = sa.create_engine(parsed, connect_args=CONNECT_ARGUMENTS, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            may_use = connection.execute(_MAY_USE).scalar_one()
    except SQLAlchemyError as error:
        return f"{name}: {_describe(error)}"
    return None if may_use else f"{name}: its user {parsed.username} must have the right to create tables"


def _describe(error: SQLAlchemyError) -> str:
    """Return the first line of the server's reason; the others, and the error's context, may quote rows."""
    reason = str(error.orig if isinstance(error, DBAPIError) else error)
    return reason.strip().partition("\n")[0]
