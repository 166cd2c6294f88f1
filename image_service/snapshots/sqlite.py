"""The store of snapshots in SQLite.

A payload is in a table of its own: SQLite writes a row as a whole, and what is known of a snapshot changes
every minute.
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
from sqlalchemy.dialects import sqlite

from image_service.database.sqlite_file import SqliteFile
from image_service.snapshots.repository import KEPT_GENERATIONS, Mount, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sqlalchemy import ColumnElement, Insert

    from image_service.concurrency.threads import InThread

T = TypeVar("T")

STORE_FILE = "snapshots.sqlite"
VERSION = 1
_TABLES = MetaData()
_SNAPSHOTS = Table(
    "snapshots",
    _TABLES,
    Column("key", LargeBinary, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("taken_at", Float, nullable=False),  # this and the next two: seconds since 1970, UTC
    Column("validated_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("ended", Boolean, nullable=False),
)
_PAYLOADS = Table(
    "payloads",
    _TABLES,
    Column("key", LargeBinary, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["key", "generation"], ["snapshots.key", "snapshots.generation"], ondelete="CASCADE"
    ),
)
_MOUNTS = Table(
    "mounts",
    _TABLES,
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


def _unless_there_is_a_later_one() -> Insert:
    columns = _SNAPSHOTS.c
    taken = exists().where(columns.key == _OF, columns.generation >= _NUMBER)
    values = select(_OF, _NUMBER, _AT, _AT, _AT, false()).where(~taken)
    return insert(_SNAPSHOTS).from_select(list(columns), values)


def _unless_it_reads_another() -> Insert:
    upsert = sqlite.insert(_MOUNTS)
    known, new = _MOUNTS.c, upsert.excluded
    is_same = and_(*(known[name] == new[name] for name in ("key", "generation", "base_sha256")))
    return upsert.on_conflict_do_update(
        index_elements=[known.reader],
        set_={column.name: column for column in new if column.name != "reader"},
        where=or_(known.read_at < _SINCE, is_same & (known.read_at <= new.read_at)),
    )


# The statements of requests are made once: SQLAlchemy takes longer to make one than SQLite to run it.
_LATEST = (
    select(_SNAPSHOTS.c.generation, _SNAPSHOTS.c.taken_at, _SNAPSHOTS.c.validated_at, _SNAPSHOTS.c.ended)
    .where(_SNAPSHOTS.c.key == _OF)
    .order_by(_SNAPSHOTS.c.generation.desc())
    .limit(1)
)
_LOAD = select(_PAYLOADS.c.sealed).where(_is(_PAYLOADS))
_ADD = _unless_there_is_a_later_one()
_ADD_PAYLOAD = insert(_PAYLOADS)
_DROP_SURPLUS = delete(_SNAPSHOTS).where(_SNAPSHOTS.c.key == _OF, _SNAPSHOTS.c.generation <= _NUMBER)
_VALIDATE = (
    update(_SNAPSHOTS)
    .where(_is(_SNAPSHOTS), ~_SNAPSHOTS.c.ended)
    .values(validated_at=_later(_SNAPSHOTS.c.validated_at), used_at=_later(_SNAPSHOTS.c.used_at))
)
_SAVE_MOUNTS = _unless_it_reads_another()
_USE = update(_SNAPSHOTS).where(_is(_SNAPSHOTS)).values(used_at=_later(_SNAPSHOTS.c.used_at))
_MOUNT = select(_MOUNTS).where(_MOUNTS.c.reader == _OF)


class SqliteStore:
    """Keeps snapshots and mounts in a file, which several processes may share. See ``SnapshotStore``.

    Nothing is opened before it is asked for, and a store that fails may succeed the next time.

    Args:
        path: the database; made, or replaced where it is damaged, in a directory that exists.
        in_thread: runs what waits for the disk. With two threads nobody who reads waits for who writes.
    """

    def __init__(self, path: Path, in_thread: InThread) -> None:
        self._file = SqliteFile(path, _TABLES, VERSION)
        self._in_thread = in_thread

    async def latest(self, key: bytes) -> Stored | None:
        """Look up the newest generation."""
        return await self._transact(partial(_latest, key))

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Read a payload."""
        return await self._transact(partial(_load, key, generation))

    async def add(self, key: bytes, generation: int, sealed: bytes, taken_at: float) -> bool:
        """Keep a new generation, unless somebody else was faster."""
        return await self._transact(partial(_add, key, generation, sealed, taken_at))

    async def validated(self, key: bytes, generation: int, at: float) -> None:
        """Take note that assisted-service said the same again."""
        await self._transact(partial(_validated, key, generation, at))

    async def end(self, key: bytes, at: float) -> None:
        """Drop all generations of a key, and the mounts that read them."""
        await self._transact(partial(_end, key, at))

    async def save_mounts(self, mounts: Sequence[Mount]) -> None:
        """Keep mounts, all or none."""
        if mounts:
            await self._transact(partial(_save_mounts, [attrs.asdict(mount) for mount in mounts]))

    async def mount(self, reader: bytes) -> Mount | None:
        """Look up what a reader was served from."""
        return await self._transact(partial(_mount, reader))

    async def sweep(self, unused_since: float) -> int:
        """Drop what nobody used."""
        return await self._transact(partial(_sweep, unused_since))

    async def close(self) -> None:
        """Close the file."""
        await self._in_thread(self._file.close)

    async def _transact(self, work: Callable[[Connection], T]) -> T:
        return await self._in_thread(partial(self._file.transact, work))


def _latest(key: bytes, connection: Connection) -> Stored | None:
    found = connection.execute(_LATEST, {"of": key}).first()
    return None if found is None else Stored(*found)


def _load(key: bytes, generation: int, connection: Connection) -> bytes | None:
    sealed: bytes | None = connection.scalar(_LOAD, {"of": key, "number": generation})
    return sealed


def _add(key: bytes, generation: int, sealed: bytes, taken_at: float, connection: Connection) -> bool:
    if not connection.execute(_ADD, {"of": key, "number": generation, "at": taken_at}).rowcount:
        return False
    connection.execute(_ADD_PAYLOAD, {"key": key, "generation": generation, "sealed": sealed})
    if generation > KEPT_GENERATIONS:
        connection.execute(_DROP_SURPLUS, {"of": key, "number": generation - KEPT_GENERATIONS})
    return True


def _validated(key: bytes, generation: int, at: float, connection: Connection) -> None:
    connection.execute(_VALIDATE, {"of": key, "number": generation, "at": at})


def _end(key: bytes, at: float, connection: Connection) -> None:
    columns = _SNAPSHOTS.c
    newest = select(func.max(columns.generation)).where(columns.key == key).scalar_subquery()
    of_key = columns.key == key
    connection.execute(update(_SNAPSHOTS).where(of_key).values(ended=True, used_at=at))
    connection.execute(delete(_SNAPSHOTS).where(of_key, columns.generation < newest))
    for table in (_PAYLOADS, _MOUNTS):
        connection.execute(delete(table).where(table.c.key == key))


def _save_mounts(mounts: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(_SAVE_MOUNTS, mounts)
    used = [{"of": mount["key"], "number": mount["generation"], "at": mount["read_at"]} for mount in mounts]
    connection.execute(_USE, used)


def _mount(reader: bytes, connection: Connection) -> Mount | None:
    found = connection.execute(_MOUNT, {"of": reader}).first()
    return None if found is None else Mount(*found)


def _sweep(unused_since: float, connection: Connection) -> int:
    older = _SNAPSHOTS.alias()
    in_use = exists().where(
        older.c.key == _SNAPSHOTS.c.key,
        older.c.generation <= _SNAPSHOTS.c.generation,
        older.c.used_at >= unused_since,
    )
    swept = connection.execute(delete(_SNAPSHOTS).where(~in_use)).rowcount
    connection.execute(delete(_MOUNTS).where(_MOUNTS.c.read_at < unused_since))
    return swept
