"""SQLite databases, for data that may be lost: a file is created, checked and, if it is unusable, replaced.

Several processes may share a file. A damaged or foreign one is moved aside, and a new one takes its place. So
a path may come to name another file than the open one: the two are compared before each use.

With WAL and ``synchronous=NORMAL`` committed data survives the end of the process, however that ends; a
power failure may take the latest commits, and leaves the file consistent.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs
from sqlalchemy import URL, Connection, Engine, MetaData, Table, create_engine, event
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DBAPIError, OperationalError
from twisted.logger import Logger

from image_service.common.concurrency.file_locks import directory_lock
from image_service.common.files.private_files import create_private, restrict_to_owner
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
Identity: TypeAlias = "tuple[int, int]"

BUSY_SECONDS = 0.4
"""The time that one writer waits for another: less than a request waits for it."""
_UNUSABLE_SUFFIX = ".unusable"
_FILE_SUFFIXES = ("", "-wal", "-shm")
_FILE_PRAGMAS = (
    "auto_vacuum = FULL",  # deleted rows give their space back
    "journal_mode = WAL",
)
_CONNECTION_PRAGMAS = (
    "synchronous = NORMAL",
    "foreign_keys = ON",
    "journal_size_limit = 4194304",  # or the WAL keeps the size of the largest transaction
    "temp_store = MEMORY",  # or large transactions write temporary files
)
_USED_BYTES = (
    "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
_MAX_WAL_BYTES = 6 * 1024 * 1024
"""The WAL is emptied when it is larger. SQLite does so at 4 MiB itself, unless it is being read then."""
# "SQL logic error" is a table that is not there, or not ours: all our statements are valid.
_UNUSABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_log = Logger()


class _Unusable(Exception):
    """The file is not a database, or not one of ours."""


@attrs.frozen
class _Opened:
    engine: Engine
    identity: Identity

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.engine.pool.dispose()  # not the engine's dispose, which would lose the pool of those in use


class SqliteDatabase:
    """A database in a file. See ``Database``.

    Args:
        path: is created, readable for its owner alone, if it does not exist.
        tables: created in a new file.
        version: of the tables, from 1; a file of a later one is refused.
        migrations: each brings the tables from a version to the next; a file of another earlier version is
            replaced.
        busy_seconds: that one writer waits for another, of this process or of another.
        keeps_damaged_text: True: text that is not UTF-8 damages its row alone, and not the file.
    """

    def __init__(  # noqa: PLR0913 - the file, its tables, and what differs between databases
        self,
        path: Path,
        tables: MetaData,
        version: int,
        migrations: Mapping[int, Callable[[Connection], None]] = MappingProxyType({}),
        *,
        busy_seconds: float = BUSY_SECONDS,
        keeps_damaged_text: bool = False,
    ) -> None:
        self._path = path
        self._wal = f"{path}-wal"
        self._tables = tables
        self._version = version
        self._migrations = migrations
        self._busy_seconds = busy_seconds
        self._keeps_damaged_text = keeps_damaged_text
        self._opened: _Opened | None = None
        self._is_closed = False

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run work in one transaction; again, on a new file, if it finds the file damaged."""
        try:
            opened = self._opened
            if opened is None or not self._is_at_path(opened):
                opened = self._reopen()
            try:
                return self._transact(opened, work)
            except _Unusable as damage:
                return self._transact(self._reopen(opened, str(damage)), work)
        except (DBAPIError, OSError, _Unusable) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise StoreFailed(f"{self._path}: {reason}") from error

    def insert(self, table: Table) -> sqlite_dialect.Insert:
        """Return SQLite's insert."""
        return sqlite_dialect.insert(table)

    def missing_bytes(self, connection: Connection, needed_bytes: int, max_bytes: int) -> int:
        """Return by how much the pages in use, and the needed bytes, exceed the limit."""
        return int(connection.exec_driver_sql(_USED_BYTES).scalar_one()) + needed_bytes - max_bytes

    def close(self) -> None:
        """Close the file. A transaction that is running, or begins later, closes its own connection."""
        self._is_closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _transact(self, opened: _Opened, work: Callable[[Connection], T]) -> T:
        try:
            result = _run(opened.engine, work)
            self._limit_wal(opened.engine)
        finally:
            if self._is_closed or opened is not self._opened:
                opened.close()
        return result

    def _reopen(self, damaged: _Opened | None = None, reason: str = "") -> _Opened:
        """Open the file at the path; a new one, if that is still the damaged one."""
        with directory_lock(self._path.parent):
            if damaged is not None and self._is_at_path(damaged):
                self._move_aside(reason)
            opened = self._opened
            if opened is None or not self._is_at_path(opened):  # else another thread has opened it
                if opened is not None:
                    opened.close()
                try:
                    opened = self._open()
                except _Unusable as damage:
                    self._move_aside(str(damage))
                    opened = self._open()
                self._opened = opened
            return opened

    def _is_at_path(self, opened: _Opened) -> bool:
        with suppress(FileNotFoundError):
            return opened.identity == _identity(self._path)
        return False

    def _open(self) -> _Opened:
        create_private(self._path)
        for suffix in _FILE_SUFFIXES[1:]:  # SQLite makes them with the mode of the database
            with suppress(FileNotFoundError):
                restrict_to_owner(Path(f"{self._path}{suffix}"))
        url = URL.create("sqlite", database=str(self._path))
        # A cached statement would keep its latest parameters, such as the sealed config of a compose.
        options = {"timeout": self._busy_seconds, "cached_statements": 0}
        engine = create_engine(url, connect_args=options)
        event.listen(engine, "connect", _configure)
        if self._keeps_damaged_text:
            event.listen(engine, "connect", _replace_damaged_text)
        try:
            _run(engine, self._prepare)
        except BaseException:
            engine.dispose()
            raise
        return _Opened(engine, _identity(self._path))

    def _prepare(self, connection: Connection) -> None:
        """Create the tables in an empty file, or migrate those of an earlier release.

        Another program's file has version 0, or fails later.
        """
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version == self._version:
            return
        if version > self._version:
            raise StoreFailed(f"{self._path} has version {version}, this release supports {self._version}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # the driver begins none for such statements
        if not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one():
            self._tables.create_all(connection)
        else:
            for before in range(version, self._version):
                if before not in self._migrations:
                    raise _Unusable(f"it has version {version}, this release writes {self._version}")
                self._migrations[before](connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {self._version}")

    def _limit_wal(self, engine: Engine) -> None:
        """Empty the WAL if it is too large, unless another process is using it: then the next time."""
        with suppress(FileNotFoundError, DBAPIError):
            if os.stat(self._wal).st_size > _MAX_WAL_BYTES:  # noqa: PTH116 - Path.stat takes three times as long
                with engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                    try:
                        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close()
                    finally:
                        connection.exec_driver_sql(f"PRAGMA busy_timeout = {self._busy_seconds * 1000:.0f}")

    def _move_aside(self, reason: str) -> None:
        """Rename the file, with its WAL and index: another process may have it open."""
        aside = f"{self._path}{_UNUSABLE_SUFFIX}"
        _log.warn(
            "the database {path} is unusable and was moved to {aside}: {reason}",
            path=str(self._path),
            reason=reason,
            aside=aside,
        )
        for suffix in _FILE_SUFFIXES:
            target = Path(f"{aside}{suffix}")
            target.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").rename(target)


def _run(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run work in a transaction; raise _Unusable if the file is to blame."""
    try:
        with engine.begin() as connection:
            return work(connection)
    except UnicodeDecodeError as error:  # in SQLite's message about a schema
        raise _Unusable("the schema is malformed") from error
    except DBAPIError as error:
        if _code(error) in _UNUSABLE:
            raise _Unusable(str(error.orig)) from error
        raise


def _configure(connection: sqlite3.Connection, _: object) -> None:
    ((pages,),) = connection.execute("PRAGMA page_count")
    for pragma in _CONNECTION_PRAGMAS if pages else _FILE_PRAGMAS + _CONNECTION_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()


def _replace_damaged_text(connection: sqlite3.Connection, _: object) -> None:
    connection.text_factory = lambda text: text.decode(errors="replace")


def _code(error: DBAPIError) -> int:
    """Return SQLite's primary result code (the lowest byte). Text that is not UTF-8 has none."""
    otherwise = sqlite3.SQLITE_CORRUPT if isinstance(error, OperationalError) else 0
    return getattr(error.orig, "sqlite_errorcode", otherwise) & 0xFF


def _identity(path: Path) -> Identity:
    status = path.lstat()
    return status.st_dev, status.st_ino
