"""A simulated PostgreSQL server: the product's statements over SQLite in memory, with notifications.

Transactions are serial: what two of them do to each other in READ COMMITTED is not simulated.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.database import REPLICA_TABLES
from image_service.server.snapshots.storage.sql_statements import STORED_BYTES, TABLES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

T = TypeVar("T")

_REPLACED = (
    ("clock_timestamp() + ?", "clock_plus(?)"),
    ("clock_timestamp() - ?", "clock_minus(?)"),
    ("xmax::text <> '0'", "0"),  # a figure of the metrics alone
    ("CAST(STRFTIME('%s', clock_timestamp()) AS INTEGER)", "epoch()"),
)
"""What SQLite lacks, and the functions in its place."""
_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SimulatedServer:
    """The server.

    Args:
        seconds: the simulated time, since 1970.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self.clock_step = 0.0
        """By how much its clock is ahead."""
        self.notify: Callable[[str], None] = lambda _: None
        """Is called with each notification that is committed."""
        self._notifications: list[str] = []
        engine = sa.create_engine("sqlite://", poolclass=StaticPool)
        engine.dialect.statement_compiler = _StatementCompiler
        self._connection = engine.connect()
        self._driver: sqlite3.Connection = cast("Any", self._connection.connection.driver_connection)
        self._define_functions()
        self._tables = sa.MetaData()
        for table in (*TABLES.sorted_tables, *REPLICA_TABLES):
            table.to_metadata(self._tables)
        self._tables.tables["changes"].c.id.type = sa.Integer()  # which alone is numbered by SQLite
        self._tables.create_all(self._connection)
        self._driver.commit()

    def clear(self) -> None:
        """Remove all rows, for another history."""
        for table in reversed(self._tables.sorted_tables):
            self._connection.execute(sa.delete(table))
        self._driver.commit()
        self.clock_step = 0.0

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a transaction: the driver's, because SQLAlchemy's take longer."""
        self._notifications.clear()
        try:
            result = work(self._connection)
            self._driver.commit()
        except SQLAlchemyError as error:
            raise StoreFailed(f"SQLite: {error}") from error
        finally:
            self._driver.rollback()
        for payload in self._notifications:
            self.notify(payload)
        return result

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        rows = sa.select(sa.func.count()).select_from(self._tables.tables[table])
        return int(self.transact(lambda connection: connection.execute(rows).scalar_one()))

    def count_claims(self) -> int:
        """Return the number of claims that have not expired."""
        claims = self._tables.tables["claims"]
        held = sa.select(sa.func.count()).where(claims.c.expires_at >= sa.func.clock_timestamp())
        return int(self.transact(lambda connection: connection.execute(held).scalar_one()))

    def _now(self) -> float:
        return self.seconds() + self.clock_step

    def _define_functions(self) -> None:
        self._driver.execute("PRAGMA foreign_keys = ON").close()
        functions: list[tuple[str, int, Callable[..., str | float | None]]] = [
            ("clock_timestamp", 0, lambda: _render(self._now())),
            ("clock_plus", 1, lambda interval: _render(self._now() + _parse_interval(interval))),
            ("clock_minus", 1, lambda interval: _render(self._now() - _parse_interval(interval))),
            ("epoch", 0, self._now),
            ("pg_notify", 2, lambda _, payload: self._notifications.append(payload)),
        ]
        for name, arguments, function in functions:
            self._driver.create_function(name, arguments, function)


@attrs.define(eq=False)
class SimulatedDatabase:
    """What a replica has of the server, in place of `PostgresqlDatabase`."""

    server: SimulatedServer

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        """As `Database.transact`."""
        return self.server.transact(work)

    def insert(self, table: sa.Table) -> sqlite.Insert:
        """As `Database.insert`."""
        return sqlite.insert(table)

    def missing_bytes(self, connection: sa.Connection, needed_bytes: int, max_bytes: int) -> int:
        """As `Database.missing_bytes`."""
        return int(connection.execute(STORED_BYTES).scalar_one()) + needed_bytes - max_bytes

    def close(self) -> None:
        """As `Database.close`."""

    def abort(self, running_seconds: float = 0.0) -> None:
        """As `PostgresqlDatabase.abort`; `threads` ends transactions that hang."""


class _StatementCompiler(SQLiteCompiler):
    """Compiles PostgreSQL's statements for SQLite."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        for text, replacement in _REPLACED:
            self.string = self.string.replace(text, replacement)


def _render(seconds: float) -> str:
    """Return a time in `_FORMAT`; `strftime` takes longer."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "microseconds").removesuffix("+00:00")


@cache
def _parse_interval(text: str) -> float:
    return (datetime.strptime(text, _FORMAT).replace(tzinfo=UTC) - _EPOCH).total_seconds()
