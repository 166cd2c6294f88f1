"""The statements that are sent to a database, and how SQLite carries them out."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.common.database.database import Database

_BEFORE = "before_cursor_execute"


@contextmanager
def recorded(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Yield the list to which each statement is added, with its parameters, until the block ends."""
    statements: list[tuple[str, Any]] = []

    def record(_: object, __: object, statement: str, parameters: Any, *_others: object) -> None:
        statements.append((statement, parameters))

    engine = database.transact(lambda connection: connection.engine)
    sa.event.listen(engine, _BEFORE, record)
    try:
        yield statements
    finally:
        sa.event.remove(engine, _BEFORE, record)


def explain(database: Database, statement: str, parameters: Any) -> str:
    """Return SQLite's plan of a statement."""
    return database.transact(partial(_explain, statement, parameters))


def _explain(statement: str, parameters: Any, connection: sa.Connection) -> str:
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
    return "; ".join(row.detail for row in rows)
