"""The snapshot repository in an SQL database.

A payload has a table of its own: SQLite writes a row as a whole, and the state of a snapshot changes every
minute. What differs between databases is the `Database`'s.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import sqlalchemy as sa

from image_service.errors import StoreFailed
from image_service.snapshots.repository import KEPT_GENERATIONS, StoredMount, StoredSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from image_service.concurrency.parts import InThread
    from image_service.database.database import Database

T = TypeVar("T")

DATABASE_FILE = "snapshots.sqlite"
SCHEMA_VERSION = 1
TABLES = sa.MetaData()
_SNAPSHOTS = sa.Table(
    "snapshots",
    TABLES,
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("taken_at", sa.Float, nullable=False),  # this and the next two: seconds since 1970, UTC
    sa.Column("validated_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
)
_PAYLOADS = sa.Table(
    "payloads",
    TABLES,
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(
        ["key", "generation"], ["snapshots.key", "snapshots.generation"], ondelete="CASCADE"
    ),
)
_MOUNTS = sa.Table(
    "mounts",
    TABLES,
    sa.Column("reader", sa.LargeBinary, primary_key=True),
    sa.Column("key", sa.LargeBinary, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("base_sha256", sa.String(64), nullable=False),
    sa.Column("read_at", sa.Float, nullable=False),
)


_OF, _NUMBER = sa.bindparam("of", type_=sa.LargeBinary), sa.bindparam("number", type_=sa.Integer)
_AT, _BEFORE = sa.bindparam("at", type_=sa.Float), sa.bindparam("replaces_before", type_=sa.Float)
_NOW = sa.bindparam("now", type_=sa.Float)


def _is_generation(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.key == _OF, table.c.generation == _NUMBER)


def _upsert_mount(database: Database) -> sa.Insert:
    """Insert a mount, or update the reader's unless that has read another image since, or the same later."""
    upsert = database.insert(_MOUNTS)
    known, new = _MOUNTS.c, upsert.excluded
    is_same = sa.and_(*(known[name] == new[name] for name in ("key", "generation", "base_sha256")))
    return upsert.on_conflict_do_update(
        index_elements=[known.reader],
        set_={column.name: column for column in new if column.name != "reader"},
        where=sa.or_(known.read_at < _BEFORE, known.read_at > _NOW, is_same & (known.read_at <= new.read_at)),
    )


# The statements of requests are made once: SQLAlchemy takes longer to make one than SQLite to run it.
_FIND_NEWEST = (
    sa.select(_SNAPSHOTS.c.generation, _SNAPSHOTS.c.taken_at, _SNAPSHOTS.c.validated_at, _SNAPSHOTS.c.ended)
    .where(_SNAPSHOTS.c.key == _OF)
    .order_by(_SNAPSHOTS.c.generation.desc())
    .limit(1)
)
_LOAD = sa.select(_PAYLOADS.c.sealed).where(_is_generation(_PAYLOADS))
_IS_SUPERSEDED = sa.exists().where(_SNAPSHOTS.c.key == _OF, _SNAPSHOTS.c.generation >= _NUMBER)
_ADD = sa.insert(_SNAPSHOTS).from_select(
    list(_SNAPSHOTS.c), sa.select(_OF, _NUMBER, _AT, _AT, _AT, sa.false()).where(~_IS_SUPERSEDED)
)
_ADD_PAYLOAD = sa.insert(_PAYLOADS)
_REMOVE_SURPLUS = sa.delete(_SNAPSHOTS).where(_SNAPSHOTS.c.key == _OF, _SNAPSHOTS.c.generation <= _NUMBER)
_RECORD_VALIDATION = (
    sa.update(_SNAPSHOTS)
    .where(_is_generation(_SNAPSHOTS), ~_SNAPSHOTS.c.ended)
    .values(validated_at=_AT, used_at=_AT)
)
_RECORD_USE = (
    sa.update(_SNAPSHOTS)
    .where(_is_generation(_SNAPSHOTS), ~_SNAPSHOTS.c.used_at.between(_AT, _NOW))
    .values(used_at=_AT)
)
_FIND_MOUNT = sa.select(_MOUNTS).where(_MOUNTS.c.reader == _OF)


class SqlRepository:
    """Stores snapshots and mounts in a database that several processes may share. See ``SnapshotRepository``.

    Nothing is opened before the first call, and one that failed may succeed the next time.

    Args:
        database: with the tables `TABLES`.
        in_thread_to_read: runs what reads from the disk; no reader need wait for a writer.
        in_thread_to_write: runs what writes to it.
    """

    def __init__(self, database: Database, in_thread_to_read: InThread, in_thread_to_write: InThread) -> None:
        self._database = database
        self._in_thread_to_read = in_thread_to_read
        self._in_thread_to_write = in_thread_to_write
        self._upsert_mount = _upsert_mount(database)

    async def find_newest(self, key: bytes) -> StoredSnapshot | None:
        """Return the newest generation of a key."""
        found = await self._read(lambda connection: connection.execute(_FIND_NEWEST, {"of": key}).first())
        return None if found is None else StoredSnapshot(*found)

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Return a payload."""
        row = {"of": key, "number": generation}
        sealed: bytes | None = await self._read(lambda connection: connection.scalar(_LOAD, row))
        return sealed

    async def add(self, key: bytes, generation: int, sealed: bytes, taken_at: float) -> bool:
        """Store a new generation."""

        def work(connection: sa.Connection) -> bool:
            row = {"of": key, "number": generation, "at": taken_at}
            if not connection.execute(_ADD, row).rowcount:
                return False
            connection.execute(_ADD_PAYLOAD, {"key": key, "generation": generation, "sealed": sealed})
            if generation > KEPT_GENERATIONS:
                connection.execute(_REMOVE_SURPLUS, {"of": key, "number": generation - KEPT_GENERATIONS})
            return True

        return await self._write(work)

    async def record_validation(self, key: bytes, generation: int, at: float) -> None:
        """Record an equal answer of assisted-service."""
        row = {"of": key, "number": generation, "at": at}
        await self._write(lambda connection: connection.execute(_RECORD_VALIDATION, row).close())

    async def end(self, key: bytes, at: float) -> None:
        """Remove all generations of a key and the mounts that read them."""
        await self._write(partial(_end, key, at))

    async def save_mounts(self, mounts: Sequence[StoredMount], now: float) -> None:
        """Store mounts."""
        rows: list[dict[str, Any]] = [{**attrs.asdict(mount), "now": now} for mount in mounts]
        used = [
            {"of": mount.key, "number": mount.generation, "at": mount.read_at, "now": now} for mount in mounts
        ]

        def work(connection: sa.Connection) -> None:
            connection.execute(self._upsert_mount, rows)
            connection.execute(_RECORD_USE, used)

        if rows:
            await self._write(work)

    async def find_mount(self, reader: bytes) -> StoredMount | None:
        """Return a reader's mount."""
        row = {"of": reader}
        found = await self._read(lambda connection: connection.execute(_FIND_MOUNT, row).first())
        return None if found is None else StoredMount(*found)

    async def remove_unused(self, unused_since: float, now: float) -> int:
        """Remove what has not been used."""
        return await self._write(partial(_remove_unused, unused_since, now))

    async def close(self) -> None:
        """Close the database."""
        with suppress(StoreFailed):  # which it does already
            await self._in_thread_to_write(self._database.close)

    async def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return await self._in_thread_to_read(partial(self._database.transact, work))

    async def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return await self._in_thread_to_write(partial(self._database.transact, work))


def _end(key: bytes, at: float, connection: sa.Connection) -> None:
    of_key = _SNAPSHOTS.c.key == key
    newest = sa.select(sa.func.max(_SNAPSHOTS.c.generation)).where(of_key).scalar_subquery()
    connection.execute(sa.update(_SNAPSHOTS).where(of_key).values(ended=True, used_at=at))
    connection.execute(sa.delete(_SNAPSHOTS).where(of_key, _SNAPSHOTS.c.generation < newest))
    for table in (_PAYLOADS, _MOUNTS):
        connection.execute(sa.delete(table).where(table.c.key == key))


def _remove_unused(unused_since: float, now: float, connection: sa.Connection) -> int:
    connection.execute(sa.update(_SNAPSHOTS).where(_SNAPSHOTS.c.used_at > now).values(used_at=now))
    older = _SNAPSHOTS.alias()
    in_use = sa.exists().where(
        older.c.key == _SNAPSHOTS.c.key,
        older.c.generation <= _SNAPSHOTS.c.generation,
        older.c.used_at >= unused_since,
    )
    removed = connection.execute(sa.delete(_SNAPSHOTS).where(~in_use)).rowcount
    connection.execute(sa.delete(_MOUNTS).where(~_MOUNTS.c.read_at.between(unused_since, now)))
    return removed
