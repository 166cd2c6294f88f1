"""A database in a file, for what can be lost: the file is made, checked and, where it is unusable, replaced.

Several processes may share it. What is damaged or foreign is moved aside, and there is a new file in its
place. So a path may come to name another file than the one that is open: before each use the two are
compared.

With WAL and ``synchronous=NORMAL`` what was committed survives the end of the process, however that ends; a
power failure may take the latest commits, and leaves the file sound.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs
from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from twisted.logger import Logger

from image_service.concurrency.directory_lock import directory_lock
from image_service.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
Identity: TypeAlias = "tuple[int, int]"

BUSY_SECONDS = 5.0
"""How long one writer waits for another, of this process or not."""
_ASIDE = ".unusable"
_BESIDE = ("", "-wal", "-shm")
_OF_A_NEW_FILE = (
    "auto_vacuum = FULL",  # what is deleted gives its room back
    "journal_mode = WAL",
)
_OF_A_CONNECTION = (
    "synchronous = NORMAL",
    "foreign_keys = ON",
    "journal_size_limit = 4194304",  # or the WAL keeps the size of the largest transaction
)
# "SQL logic error" is a table that is not there, or not ours: all our statements are sound.
_UNUSABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_log = Logger()


class _Unusable(Exception):
    """The file is no database, or none of ours."""


@attrs.frozen
class _Opened:
    engine: Engine
    identity: Identity


class SqliteFile:
    """The file. Every call blocks, and may come from any thread.

    Args:
        path: where; made, for its owner alone, when it is not there.
        tables: that it has.
        version: of the tables, from 1; a file with an earlier one is replaced, one with a later one is not.
    """

    def __init__(self, path: Path, tables: MetaData, version: int) -> None:
        self._path = path
        self._tables = tables
        self._version = version
        self._opened: _Opened | None = None

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Do everything, or nothing.

        Args:
            work: done once more where it finds the file damaged, with a new one. If it writes, it does so
                first: who has read already cannot wait for another writer.

        Returns:
            what it gave.

        Raises:
            StoreFailed: it cannot be done.
        """
        with self._telling():
            opened = self._current()
            try:
                return _begin(opened.engine, work)
            except _Unusable as damage:
                return _begin(self._reopen(opened, str(damage)).engine, work)

    def close(self) -> None:
        """Close the file; the next transaction would open it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.engine.dispose()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, OSError, _Unusable) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise StoreFailed(f"{self._path}: {reason}") from error

    def _current(self) -> _Opened:
        opened = self._opened
        return opened if opened is not None and self._is_at_path(opened) else self._reopen()

    def _reopen(self, damaged: _Opened | None = None, reason: str = "") -> _Opened:
        """Open what is at the path now; if that is still what was found damaged, something new."""
        with directory_lock(self._path.parent):
            if damaged is not None and self._is_at_path(damaged):
                self._move_aside(reason)
            opened = self._opened
            if opened is None or not self._is_at_path(opened):  # no other thread was faster
                self.close()
                self._opened = opened = self._open()
            return opened

    def _is_at_path(self, opened: _Opened) -> bool:
        with suppress(FileNotFoundError):
            return opened.identity == _identity(self._path)
        return False

    def _open(self) -> _Opened:
        try:
            return self._open_as_it_is()
        except _Unusable as damage:
            self._move_aside(str(damage))
        return self._open_as_it_is()

    def _open_as_it_is(self) -> _Opened:
        _make_for_its_owner(self._path)
        url = URL.create("sqlite", database=str(self._path))
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _configure)
        try:
            _begin(engine, self._prepare)
        except BaseException:
            engine.dispose()
            raise
        return _Opened(engine, _identity(self._path))

    def _prepare(self, connection: Connection) -> None:
        """Make the tables in an empty file. Another program's has version 0, or fails later."""
        if not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one():
            self._tables.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {self._version}")
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version > self._version:
            raise StoreFailed(f"{self._path} is of version {version}, this release knows {self._version}")
        if version < self._version:
            raise _Unusable(f"of version {version}, this release makes {self._version}")

    def _move_aside(self, reason: str) -> None:
        """Give the file another name, with what belongs to it: another process may have it open."""
        aside = f"{self._path}{_ASIDE}"
        _log.warn("{path}: {reason}; moved to {aside}", path=str(self._path), reason=reason, aside=aside)
        for suffix in _BESIDE:
            target = Path(f"{aside}{suffix}")
            target.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").rename(target)


def _begin(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Do everything or nothing, and tell whether the file is to blame."""
    try:
        with engine.begin() as connection:
            return work(connection)
    except UnicodeDecodeError as error:  # in what SQLite says about a schema
        raise _Unusable("malformed beyond words") from error
    except DBAPIError as error:
        if _code(error) in _UNUSABLE:
            raise _Unusable(str(error.orig)) from error
        raise


def _configure(connection: sqlite3.Connection, _: object) -> None:
    ((pages,),) = connection.execute("PRAGMA page_count")
    for pragma in _OF_A_CONNECTION if pages else _OF_A_NEW_FILE + _OF_A_CONNECTION:
        connection.execute(f"PRAGMA {pragma}").close()


def _code(error: DBAPIError) -> int:
    """SQLite's; what is behind the lowest byte tells more of the same. Without one, a text was none."""
    otherwise = sqlite3.SQLITE_CORRUPT if isinstance(error, OperationalError) else 0
    return getattr(error.orig, "sqlite_errorcode", otherwise) & 0xFF


def _make_for_its_owner(path: Path) -> None:
    """SQLite gives the files beside it the same mode.

    One that is there is not opened: closing it would end all of SQLite's locks on it (POSIX, fcntl).
    """
    if path.exists():
        path.chmod(0o600)
    else:
        path.touch(0o600)


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino
