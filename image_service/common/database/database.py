"""The interface of the databases that repositories are written for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table
    from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")


class Database(Protocol):
    """An engine and its dialect. Every call blocks, and may come from any thread."""

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run work in one transaction: all of it happens, or nothing.

        Args:
            work: may run again if the first attempt failed. If it writes, it does so first: a transaction
                that has read may not be able to wait for another writer.

        Raises:
            StoreFailed: it cannot be done.
        """

    def insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """Return the dialect's insert, which has ``on_conflict_do_nothing`` and ``…_do_update``."""

    def missing_bytes(self, connection: Connection, needed_bytes: int, max_bytes: int) -> int:
        """Return how many bytes are to be removed so that the needed ones do not exceed the limit.

        Args:
            connection: of the present transaction, which counts as committed.
        """

    def close(self) -> None:
        """Close all connections. A transaction that is running, or begins later, closes its own."""
