"""The snapshot repository in an SQL database.

A payload has a table of its own: SQLite writes a row as a whole, and the state of a snapshot changes every
minute. What differs between databases is the `Database`'s.

What needs room removes, in this order: mounts that are over; snapshots that no mount in progress reads, the
least recently used first; the other snapshots, the least recently read first; mounts in progress. The newest
generation of a key stays while there is an older one, which would be taken for the newest.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from image_service.common.concurrency.batches import Batches
from image_service.core.errors import StoreFailed, StoreFull
from image_service.server.snapshots.storage import sql_statements as sql
from image_service.server.snapshots.storage.repository import (
    NO_LAYOUT,
    StoredMount,
    StoredSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.database.database import Database
    from image_service.server.snapshots.storage.repository import Owner

T = TypeVar("T")
_Read: TypeAlias = "Callable[[sa.Connection], Any]"
"""Reads in a transaction."""

FILES_BYTES = 6 * 1024 * 1024
"""Of the limit, for the files beside the database, such as a WAL; of a small limit the half."""
BATCH_BYTES = 8 * 1024 * 1024
"""What one transaction removes, about: other writers wait meanwhile."""
FIND_CALLS, READ_CALLS, WRITE_CALLS = 2048, 128, 256
"""Calls that one transaction serves: thousands of clients begin, or go on after a restart, at once.

Mounts are found by one statement, other rows by one each, within the time that a caller waits.
"""
MAX_BATCHES = 16
"""What is removed at most to make room; what does not fit then is not stored."""


@attrs.frozen
class StoreLimits:
    """How much is stored.

    Args:
        max_bytes: of all files.
        idle_seconds: after its last stored read a mount is over.
    """

    max_bytes: int
    idle_seconds: float

    @property
    def database_bytes(self) -> int:
        """Of the database itself."""
        return self.max_bytes - min(FILES_BYTES, self.max_bytes // 2)

    @property
    def payload_bytes(self) -> int:
        """Of one payload: it fits in beside the tables, and while it is written, it is there twice."""
        return min(self.database_bytes * 3 // 4, self.max_bytes // 10 + BATCH_BYTES)


class SqlRepository:
    """Stores snapshots and mounts in a database that several processes may share. See ``SnapshotRepository``.

    Nothing is opened before the first call, and one that failed may succeed the next time.

    Args:
        in_thread_to_read: runs what reads from the disk; no reader need wait for a writer.
        in_thread_to_write: runs what writes to it.
        limits: are checked at each write; ``remove_unused`` applies lower ones than before.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        database: Database,
        in_thread_to_read: InThread,
        in_thread_to_write: InThread,
        limits: StoreLimits,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._in_thread_to_read = in_thread_to_read
        self._in_thread_to_write = in_thread_to_write
        self._limits = limits
        self._now = now
        self._add_snapshot = sql.add_snapshot(database)
        self._upsert_mount = sql.upsert_mount(database)
        self._reading: Batches[_Read, Any] = Batches(self._read_all, READ_CALLS)  # nothing large
        self._finding = Batches(self._find_mounts, FIND_CALLS)
        self._saving = Batches(self._save_mounts, WRITE_CALLS)

    async def find_newest(self, key: bytes) -> StoredSnapshot | None:
        """Return the newest generation of a key."""
        row = {"of": key}
        found = await self._reading.add(lambda connection: connection.execute(sql.FIND_NEWEST, row).first())
        return None if found is None else StoredSnapshot(*found)

    async def has_ended(self, key: bytes, generation: int) -> bool:
        """Return True if a generation has ended, or one after it."""
        row = {"of": key, "number": generation}
        has_ended: bool = await self._reading.add(
            lambda connection: connection.execute(sql.HAS_ENDED, row).scalar_one()
        )
        return has_ended

    async def find_layout(self, key: bytes, generation: int) -> int | None:
        """Return the layout of a generation."""
        row = {"of": key, "number": generation}
        layout: int | None = await self._reading.add(
            lambda connection: connection.scalar(sql.FIND_LAYOUT, row)
        )
        return layout

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Return a payload."""
        row = {"of": key, "number": generation}
        sealed: bytes | None = await self.read(lambda connection: connection.scalar(sql.LOAD, row))
        return sealed

    async def add(  # noqa: PLR0913 - a row
        self,
        key: bytes,
        generation: int,
        sealed: bytes,
        taken_at: float,
        owner: Owner | None = None,
        *,
        layout: int = NO_LAYOUT,
    ) -> bool:
        """Store a new generation."""
        if len(sealed) > self._limits.payload_bytes:
            raise StoreFull(f"a snapshot of {len(sealed)} bytes is not stored")
        row = {"of": key, "number": generation, "at": taken_at, "layout": layout}
        whose = attrs.asdict(owner) if owner else {"infra_env": None, "credentials": None}

        def work(connection: sa.Connection) -> bool:
            if not connection.execute(self._add_snapshot, {**row, **whose}).rowcount:
                return False
            connection.execute(sql.ADD_PAYLOAD, {"key": key, "generation": generation, "sealed": sealed})
            connection.execute(sql.REMOVE_GENERATIONS, {"of": key})
            if owner is not None:
                surplus = {"infra_env": owner.infra_env, "before": self._idle_before}
                connection.execute(sql.REMOVE_CREDENTIALS, surplus)
            return True

        return await self._write_with_room(len(sealed) + len(sealed) // 64 + 16 * sql.ROW_BYTES, work)

    async def record_validation(self, key: bytes, generation: int, at: float) -> bool:
        """Record an equal answer of assisted-service."""
        row = {"of": key, "number": generation, "at": at}
        return await self.write(
            lambda connection: connection.execute(sql.RECORD_VALIDATION, row).rowcount > 0
        )

    async def record_refusal(self, key: bytes, generation: int) -> None:
        """Record that assisted-service refuses it."""
        row = {"of": key, "number": generation}
        await self.write(lambda connection: connection.execute(sql.RECORD_REFUSAL, row).close())

    async def end(self, key: bytes, at: float) -> None:
        """Remove all generations of a key."""
        await self.write(partial(_end, key, at))

    async def save_mounts(self, mounts: Sequence[StoredMount], now: float) -> None:
        """Store mounts; a single one with those of other calls, which may find room that many do not."""
        if len(mounts) == 1:
            await self._saving.add((mounts, now))
        elif mounts:
            await self._save_mounts([(mounts, now)])

    async def find_mount(self, reader: bytes) -> StoredMount | None:
        """Return a reader's mount, read with those of other calls."""
        return await self._finding.add(reader)

    async def count_mounts(self, read_since: float) -> dict[str, int]:
        """Return how many mounts have read each base image since a time."""
        row = {"read_since": read_since}
        found = await self.read(lambda connection: connection.execute(sql.COUNT_MOUNTS, row).all())
        return {sha256: count for sha256, count in found if count}

    async def remove_unused(self, unused_since: float, now: float) -> int:
        """Remove what has not been used."""

        def work(connection: sa.Connection) -> tuple[int, int]:
            for statement in sql.CORRECT_FUTURE:
                connection.execute(statement, {"now": now})
            mounts = connection.execute(sql.REMOVE_MOUNTS, {"before": unused_since}).rowcount
            return self._remove(connection, sql.UNUSED, unused_since, BATCH_BYTES)[0], mounts

        removed = 0
        while any(batch := await self.write(work)):
            removed += batch[0]
        while not await self.write(partial(self._make_room, 0)):
            pass
        return removed

    async def close(self) -> None:
        """Close the database, once the mounts that wait are stored."""
        with suppress(StoreFailed):
            await self._saving.add(((), 0.0))
        with suppress(StoreFailed):
            await self._in_thread_to_write(self._database.close)

    # Several calls in one transaction.

    async def _read_all(self, works: Sequence[_Read]) -> list[Any]:
        return await self.read(lambda connection: [work(connection) for work in works])

    async def _save_mounts(self, calls: Sequence[tuple[Sequence[StoredMount], float]]) -> list[None]:
        rows: list[dict[str, Any]] = [
            {**attrs.asdict(mount), "now": now} for mounts, now in calls for mount in mounts
        ]
        rows.sort(key=itemgetter("reader"))  # one order in all processes: rows stay locked until the end
        by_time = sorted(rows, key=itemgetter("read_at"))
        latest = {(row["key"], row["generation"]): row for row in by_time}
        read = [
            {"of": key, "number": generation, "at": row["read_at"], "now": row["now"]}
            for (key, generation), row in sorted(latest.items(), key=itemgetter(0))
        ]

        def work(connection: sa.Connection) -> None:
            connection.execute(self._upsert_mount, rows)
            connection.execute(sql.RECORD_READ, read)

        if rows:
            await self._write_with_room(len(rows) * sql.ROW_BYTES, work)
        return [None] * len(calls)

    async def _find_mounts(self, readers: Sequence[bytes]) -> list[StoredMount | None]:
        row = {"readers": readers}
        rows = await self.read(lambda connection: connection.execute(sql.FIND_MOUNTS, row).all())
        found = {mount.reader: mount for mount in (StoredMount(*columns) for columns in rows)}
        return [found.get(reader) for reader in readers]

    # Room.

    @property
    def _idle_before(self) -> float:
        return self._now() - self._limits.idle_seconds

    def _make_room(self, needed_bytes: int, connection: sa.Connection) -> bool:
        """Remove what may be removed in one transaction; return True if there is room then."""
        missing = self._missing_bytes(needed_bytes, connection)
        if missing <= 0:
            return True
        connection.execute(sql.REMOVE_MOUNTS, {"before": self._idle_before})
        missing = min(missing, BATCH_BYTES)
        for oldest in (sql.IDLE, sql.IN_PROGRESS):
            missing -= self._remove(connection, oldest, self._idle_before, missing)[1]
            if missing <= 0:
                break
        else:
            connection.execute(sql.REMOVE_MOUNTS, {"before": inf})
        return self._missing_bytes(needed_bytes, connection) <= 0

    def _missing_bytes(self, needed_bytes: int, connection: sa.Connection) -> int:
        return self._database.missing_bytes(connection, needed_bytes, self._limits.database_bytes)

    def _remove(
        self, connection: sa.Connection, oldest: sa.Select[Any], before: float, missing: int
    ) -> tuple[int, int]:
        """Remove snapshots until enough bytes are free; return how many, and the bytes."""
        removed, freed = [], 0
        for key, generation, size in connection.execute(oldest, {"before": before}):
            if freed >= missing:
                break
            removed.append({"of": key, "number": generation})
            freed += size
        if removed:
            connection.execute(sql.REMOVE, removed)
        return len(removed), freed

    # Transactions.

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a transaction that only reads."""
        return await self._in_thread_to_read(partial(self._database.transact, work))

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a transaction that writes first."""
        return await self._in_thread_to_write(partial(self._database.transact, work))

    async def _write_with_room(self, needed_bytes: int, work: Callable[[sa.Connection], T]) -> T:
        """Run a transaction once there is room for what it adds."""

        def attempt(connection: sa.Connection) -> tuple[T] | None:
            return (work(connection),) if self._make_room(needed_bytes, connection) else None

        for _ in range(MAX_BATCHES):
            if (result := await self.write(attempt)) is not None:
                return result[0]
        raise StoreFull(f"there is no room for {needed_bytes} bytes yet")


def _end(key: bytes, at: float, connection: sa.Connection) -> None:
    for statement in sql.END:
        connection.execute(statement, {"of": key, "at": at})
