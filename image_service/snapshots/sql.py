"""The snapshot repository in an SQL database.

A payload has a table of its own: SQLite writes a row as a whole, and the state of a snapshot changes every
minute. What differs between databases is the `Database`'s.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    insert,
    or_,
    select,
    update,
)

from image_service.snapshots.repository import KEPT_GENERATIONS, StoredMount, StoredSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement, Insert

    from image_service.concurrency.lifecycle import InThread
    from image_service.database.database import Database

T = TypeVar("T")

DATABASE_FILE = "snapshots.sqlite"
SCHEMA_VERSION = 1
TABLES = MetaData()
_SNAPSHOTS = Table(
    "snapshots",
    TABLES,
    Column("key", LargeBinary, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("taken_at", Float, nullable=False),  # this and the next two: seconds since 1970, UTC
    Column("validated_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("ended", Boolean, nullable=False),
)
_PAYLOADS = Table(
    "payloads",
    TABLES,
    Column("key", LargeBinary, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["key", "generation"], ["snapshots.key", "snapshots.generation"], ondelete="CASCADE"
    ),
)
_MOUNTS = Table(
    "mounts",
    TABLES,
    Column("reader", LargeBinary, primary_key=True),
    Column("key", LargeBinary, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("base_sha256", String(64), nullable=False),
    Column("read_at", Float, nullable=False),
)


_OF, _NUMBER = bindparam("of", type_=LargeBinary), bindparam("number", type_=Integer)
_AT, _SINCE = bindparam("at", type_=Float), bindparam("since", type_=Float)


def _is(table: Table) -> ColumnElement[bool]:
    return and_(table.c.key == _OF, table.c.generation == _NUMBER)


def _later(column: Column[float]) -> ColumnElement[float]:
    return case((column < _AT, _AT), else_=column)


def _upsert_mount(database: Database) -> Insert:
    """Insert a mount, or update the reader's unless that reads another image since, or the same one later."""
    upsert = database.insert(_MOUNTS)
    known, new = _MOUNTS.c, upsert.excluded
    is_same = and_(*(known[name] == new[name] for name in ("key", "generation", "base_sha256")))
    return upsert.on_conflict_do_update(
        index_elements=[known.reader],
        set_={column.name: column for column in new if column.name != "reader"},
        where=or_(known.read_at < _SINCE, is_same & (known.read_at <= new.read_at)),
    )


# The statements of requests are made once: SQLAlchemy takes longer to make one than SQLite to run it.
_FIND_NEWEST = (
    select(_SNAPSHOTS.c.generation, _SNAPSHOTS.c.taken_at, _SNAPSHOTS.c.validated_at, _SNAPSHOTS.c.ended)
    .where(_SNAPSHOTS.c.key == _OF)
    .order_by(_SNAPSHOTS.c.generation.desc())
    .limit(1)
)
_LOAD = select(_PAYLOADS.c.sealed).where(_is(_PAYLOADS))
_IS_SUPERSEDED = exists().where(_SNAPSHOTS.c.key == _OF, _SNAPSHOTS.c.generation >= _NUMBER)
_ADD = insert(_SNAPSHOTS).from_select(
    list(_SNAPSHOTS.c), select(_OF, _NUMBER, _AT, _AT, _AT, false()).where(~_IS_SUPERSEDED)
)
_ADD_PAYLOAD = insert(_PAYLOADS)
_REMOVE_SURPLUS = delete(_SNAPSHOTS).where(_SNAPSHOTS.c.key == _OF, _SNAPSHOTS.c.generation <= _NUMBER)
_VALIDATE = (
    update(_SNAPSHOTS)
    .where(_is(_SNAPSHOTS), ~_SNAPSHOTS.c.ended)
    .values(validated_at=_later(_SNAPSHOTS.c.validated_at), used_at=_later(_SNAPSHOTS.c.used_at))
)
_USE = update(_SNAPSHOTS).where(_is(_SNAPSHOTS)).values(used_at=_later(_SNAPSHOTS.c.used_at))
_FIND_MOUNT = select(_MOUNTS).where(_MOUNTS.c.reader == _OF)


class SqlRepository:
    """Stores snapshots and mounts in a database that several processes may share. See ``SnapshotRepository``.

    Nothing is opened before the first call, and one that failed may succeed the next time.

    Args:
        database: with the tables `TABLES`.
        in_thread: runs what waits for the disk. With two threads no reader waits for a writer.
    """

    def __init__(self, database: Database, in_thread: InThread) -> None:
        self._database = database
        self._in_thread = in_thread
        self._upsert_mount = _upsert_mount(database)

    async def find_newest(self, key: bytes) -> StoredSnapshot | None:
        """Return the newest generation of a key."""
        found = await self._transact(lambda connection: connection.execute(_FIND_NEWEST, {"of": key}).first())
        return None if found is None else StoredSnapshot(*found)

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Return a payload."""
        row = {"of": key, "number": generation}
        sealed: bytes | None = await self._transact(lambda connection: connection.scalar(_LOAD, row))
        return sealed

    async def add(self, key: bytes, generation: int, sealed: bytes, taken_at: float) -> bool:
        """Store a new generation."""

        def work(connection: Connection) -> bool:
            row = {"of": key, "number": generation, "at": taken_at}
            if not connection.execute(_ADD, row).rowcount:
                return False
            connection.execute(_ADD_PAYLOAD, {"key": key, "generation": generation, "sealed": sealed})
            if generation > KEPT_GENERATIONS:
                connection.execute(_REMOVE_SURPLUS, {"of": key, "number": generation - KEPT_GENERATIONS})
            return True

        return await self._transact(work)

    async def record_validation(self, key: bytes, generation: int, at: float) -> None:
        """Record that assisted-service said the same again."""
        row = {"of": key, "number": generation, "at": at}
        await self._transact(lambda connection: connection.execute(_VALIDATE, row).close())

    async def end(self, key: bytes, at: float) -> None:
        """Remove all generations of a key and the mounts that read them."""
        await self._transact(partial(_end, key, at))

    async def save_mounts(self, mounts: Sequence[StoredMount]) -> None:
        """Store mounts."""
        rows: list[dict[str, Any]] = [attrs.asdict(mount) for mount in mounts]
        used = [{"of": mount.key, "number": mount.generation, "at": mount.read_at} for mount in mounts]

        def work(connection: Connection) -> None:
            connection.execute(self._upsert_mount, rows)
            connection.execute(_USE, used)

        if rows:
            await self._transact(work)

    async def find_mount(self, reader: bytes) -> StoredMount | None:
        """Return a reader's mount."""
        row = {"of": reader}
        found = await self._transact(lambda connection: connection.execute(_FIND_MOUNT, row).first())
        return None if found is None else StoredMount(*found)

    async def remove_unused(self, unused_since: float) -> int:
        """Remove what has not been used."""
        return await self._transact(partial(_remove_unused, unused_since))

    async def close(self) -> None:
        """Close the database."""
        await self._in_thread(self._database.close)

    async def _transact(self, work: Callable[[Connection], T]) -> T:
        return await self._in_thread(partial(self._database.transact, work))


def _end(key: bytes, at: float, connection: Connection) -> None:
    of_key = _SNAPSHOTS.c.key == key
    newest = select(func.max(_SNAPSHOTS.c.generation)).where(of_key).scalar_subquery()
    connection.execute(update(_SNAPSHOTS).where(of_key).values(ended=True, used_at=at))
    connection.execute(delete(_SNAPSHOTS).where(of_key, _SNAPSHOTS.c.generation < newest))
    for table in (_PAYLOADS, _MOUNTS):
        connection.execute(delete(table).where(table.c.key == key))


def _remove_unused(unused_since: float, connection: Connection) -> int:
    older = _SNAPSHOTS.alias()
    in_use = exists().where(
        older.c.key == _SNAPSHOTS.c.key,
        older.c.generation <= _SNAPSHOTS.c.generation,
        older.c.used_at >= unused_since,
    )
    removed = connection.execute(delete(_SNAPSHOTS).where(~in_use)).rowcount
    connection.execute(delete(_MOUNTS).where(_MOUNTS.c.read_at < unused_since))
    return removed
