"""A simulated PostgreSQL server: the product's statements over SQLite in memory, with notifications.

Transactions are serial: what two of them do to each other in READ COMMITTED is not simulated.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.database import REPLICA_TABLES
from image_service.server.snapshots.storage.sql_statements import STORED_BYTES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.sql.compiler import SQLCompiler

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
        self._driver: sqlite3.Connection = cast("Any", engine.raw_connection().driver_connection)
        self._connection = _Connection(self._driver, engine.dialect)
        self._define_functions()
        self._tables = sa.MetaData()
        for table in (*TABLES.sorted_tables, *REPLICA_TABLES):
            table.to_metadata(self._tables)
        self._tables.tables["changes"].c.id.type = sa.Integer()  # which alone is numbered by SQLite
        self._tables.create_all(engine)

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
            result = work(cast("Any", self._connection))
            self._driver.commit()
        except (SQLAlchemyError, sqlite3.Error) as error:
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
            # A deterministic function is called once for a statement, and not for each row.
            self._driver.create_function(name, arguments, function, deterministic=name != "pg_notify")


class _Rows(IteratorResult[Any]):
    """A result, as `sa.CursorResult`."""

    rowcount: int


@attrs.define(eq=False)
class _Connection:
    """What the product uses of `sa.Connection`, which takes three times as long.

    Statements are compiled, and values converted, by SQLAlchemy.
    """

    _driver: sqlite3.Connection
    _dialect: sa.Dialect
    _compiled: dict[Any, Any] = attrs.field(factory=dict)
    _columns: dict[SQLCompiler, tuple[SimpleResultMetaData, list[Any]]] = attrs.field(factory=dict)

    def execute(
        self, statement: sa.ClauseElement, parameters: dict[str, Any] | Sequence[dict[str, Any]] | None = None
    ) -> _Rows:
        """As `sa.Connection.execute`."""
        rows = [parameters or {}] if parameters is None or isinstance(parameters, dict) else parameters
        compiled, extracted, collected, _ = statement._compile_w_cache(
            self._dialect,
            compiled_cache=self._compiled,
            column_keys=sorted(rows[0]),
            for_executemany=len(rows) > 1,
        )
        compiled = cast("SQLCompiler", compiled)
        text, to_driver = compiled.string, cast("dict[str, Callable[[Any], Any]]", compiled._bind_processors)
        names: Sequence[str] = compiled.positiontup or ()
        values = [
            compiled.construct_params(
                row, extracted_parameters=extracted, escape_names=False, _collected_params=collected
            )
            for row in rows
        ]
        if compiled.post_compile_params:  # lists
            expanded = compiled._process_parameters_for_postcompile(values[0])
            text, names = expanded.statement, expanded.positiontup or ()
            to_driver = to_driver | cast("Any", expanded.processors)
        converted = [
            [to_driver[name](row[name]) if name in to_driver else row[name] for name in names]
            for row in values
        ]
        if len(rows) > 1:
            cursor = self._driver.executemany(text, converted)
        else:
            cursor = self._driver.execute(text, converted[0])
        return self._read(compiled, cursor)

    def _read(self, compiled: SQLCompiler, cursor: sqlite3.Cursor) -> _Rows:
        if compiled not in self._columns:
            columns = compiled._result_columns
            to_python = [column.type._cached_result_processor(self._dialect, None) for column in columns]
            names = [name for name, *_ in cursor.description or ()]
            self._columns[compiled] = SimpleResultMetaData(names), to_python if any(to_python) else []
        metadata, to_python = self._columns[compiled]
        found = cursor.fetchall()
        if to_python:
            found = [
                tuple(value if to is None else to(value) for to, value in zip(to_python, row, strict=True))
                for row in found
            ]
        result = _Rows(metadata, iter(found))
        result.rowcount = cursor.rowcount
        return result

    def scalars(self, statement: sa.ClauseElement, parameters: dict[str, Any] | None = None) -> Any:
        """As `sa.Connection.scalars`."""
        return self.execute(statement, parameters).scalars()

    def scalar(self, statement: sa.ClauseElement, parameters: dict[str, Any] | None = None) -> Any:
        """As `sa.Connection.scalar`."""
        return self.execute(statement, parameters).scalar()


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
