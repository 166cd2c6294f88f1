"""What becomes of the file: shared, killed, damaged, foreign, full, forbidden."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import sqlite3
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pytest
from sqlalchemy import MetaData
from twisted.logger import capturedLogs, formatEvent

from image_service.common.database import sqlite as sqlite_module
from image_service.common.database.sqlite import SqliteDatabase
from image_service.core.errors import StoreFailed
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.customization import Customization
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.snapshots.storage.codec import encode_customization
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.repository import StoredMount, StoredSnapshot
from image_service.server.snapshots.storage.sql_statements import (
    DATABASE_FILE,
    SCHEMA_VERSION,
    TABLES,
)
from tests.forks import Fork
from tests.server.snapshots.outcomes import outcome
from tests.server.snapshots.repositories import repository_in
from tests.server.snapshots.repository_writer import key_of, payload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from image_service.server.snapshots.storage.sql_repository import SqlRepository


ROOT = Path(__file__).resolve().parents[3]
KEY = b"k" * 32
T = 1_700_000_000.25
MIB = 1024 * 1024
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / DATABASE_FILE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlRepository]:
    store = repository_in(tmp_path)
    yield store
    outcome(store.close())


def add(store: SqlRepository, key: bytes = KEY, sealed: bytes = b"sealed") -> bool:
    return outcome(store.add(key, 1, sealed, T))


def load(store: SqlRepository, key: bytes = KEY) -> bytes | None:
    return outcome(store.load(key, 1))


def is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_content_outlives_the_repository(tmp_path: Path, path: Path) -> None:
    mount = StoredMount(b"r", KEY, 1, "5f" * 32, T)
    first, second = repository_in(tmp_path), repository_in(tmp_path)
    add(first)
    outcome(first.save_mounts([mount], T))
    outcome(first.close())
    assert load(second) == b"sealed"
    assert outcome(second.find_newest(KEY)) == StoredSnapshot(1, T, T)
    assert outcome(second.find_mount(b"r")) == mount
    outcome(second.close())
    assert is_sound(path)
    assert [file.name for file in tmp_path.iterdir()] == [DATABASE_FILE]


@pytest.mark.parametrize("there_already", [False, True])
def test_files_are_private(store: SqlRepository, path: Path, tmp_path: Path, there_already: object) -> None:
    if there_already:
        path.touch(0o644)
    umask = os.umask(0)
    try:
        add(store)
    finally:
        os.umask(umask)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys([DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"], 0o600)


def test_removed_rows_free_disk_space(store: SqlRepository, path: Path) -> None:
    add(store, sealed=os.urandom(8 * MIB))
    outcome(store.remove_unused(T + 1, T + 1))
    outcome(store.close())
    assert path.stat().st_size < MIB
    add(store)
    assert load(store) == b"sealed"


def test_files_hold_nothing_in_clear(store: SqlRepository, tmp_path: Path) -> None:
    address, infra_env = "192.0.2.77", "0e7c5f0a-6f2b-4f3e-9a35-c2a6d4a3f1b7"
    credentials = Credentials(CredentialScheme.IMAGE_TOKEN, "eyJhbGciOiJFUzI1NiJ9.of-the-request.c2ln")
    customization = Customization(
        b'{"ignition":{"version":"3.1.0"},"pull":"secret"}' * 1000,
        (KernelArgument(Operation.APPEND, "password=of-an-argument"),),
        None,
        b"a ramdisk with keyfiles" * 1000,
    )
    cipher = SnapshotCipher(b"i" * 32)
    seal, reader = (
        cipher.seal_of(infra_env, "full-iso", credentials),
        cipher.reader_key_of(address, credentials, "r"),
    )
    key, sealed = seal.key, seal.seal(1, encode_customization(customization))
    outcome(store.add(key, 1, sealed, T, seal.owner))
    outcome(store.save_mounts([StoredMount(reader, key, 1, "5f" * 32, T)], T))
    in_wal = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    outcome(store.close())
    in_file = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for text in (in_wal, in_file):
        assert key in text
        assert reader in text
        secrets = (b"ignition", b"secret", b"ramdisk", b"password", b"of-the-request", b"eyJ")
        others = (infra_env.encode(), address.encode(), b"full-iso", b"i" * 32)
        assert [secret for secret in secrets + others if secret in text] == []


# Several processes.


@contextmanager
def writing(directory: Path, name: str, first: int, end: int) -> Iterator[tuple[Fork, TextIO]]:
    """A process that is about to add, and what it says; told to go on, it does."""
    arguments = (str(directory), name, str(first), str(end))
    command = [sys.executable, "-m", "tests.server.snapshots.repository_writer", *arguments]
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rw") as talk:
        with theirs:
            process = Fork(command, cwd=ROOT, stdin=theirs.fileno(), stdout=theirs.fileno())
        with process:
            try:
                assert talk.readline() == "ready\n"
                yield process, talk
            finally:
                process.kill()


def go_on(talk: TextIO) -> None:
    talk.write("\n")
    talk.flush()


def test_one_of_two_processes_wins_each_generation(store: SqlRepository, tmp_path: Path, path: Path) -> None:
    """From the moment on in which both of them make the file."""
    with writing(tmp_path, "A", 0, 40) as (one, of_one), writing(tmp_path, "B", 0, 40) as (other, of_other):
        go_on(of_one)
        go_on(of_other)
        told = {"A": of_one.readlines(), "B": of_other.readlines()}
        assert (one.wait(), other.wait()) == (0, 0)
    for number in range(40):
        (winner,) = [name for name in "AB" if told[name][number] == f"{number} won\n"]
        assert load(store, key_of(number)) == payload_of(winner)
    assert is_sound(path)


def test_kill_9_loses_nothing_acknowledged(store: SqlRepository, tmp_path: Path, path: Path) -> None:
    """Killed in the middle of one of the writes that follow the last one that was told."""
    first = 0
    for acknowledged in (1, 2, 5, 13, 30):
        with writing(tmp_path, "A", first, 1_000_000) as (process, talk):
            go_on(talk)
            told = [talk.readline() for _ in range(acknowledged)]
            process.kill()
        assert told == [f"{first + number} won\n" for number in range(acknowledged)]
        for number in range(first + acknowledged):
            assert load(store, key_of(number)) == payload_of("A")
        while load(store, key_of(first)):  # whole or not at all, however far it came
            assert load(store, key_of(first)) == payload_of("A")
            first += 1
    assert is_sound(path)


def test_reader_does_not_wait_for_a_writer(
    store: SqlRepository, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_SECONDS", 0.0)
    add(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert load(store) == b"sealed"
        with pytest.raises(StoreFailed, match="locked"):
            outcome(store.record_validation(KEY, 1, T + 1))
        other.execute("ROLLBACK")
    outcome(store.record_validation(KEY, 1, T + 1))
    assert outcome(store.find_newest(KEY)) == StoredSnapshot(1, T, T + 1)


# Damage.


def overwritten(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * length)


def foreign(path: Path, version: int) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE snapshots (key BLOB)")
        database.execute(f"PRAGMA user_version = {version}")


def of_an_earlier_release(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 0")


def replaced(path: Path, before: bytes, after: bytes) -> None:
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after.ljust(len(before), b"\xff")))


def schema_overwritten(path: Path) -> None:
    """SQLite names the table of which it cannot read what it is."""
    replaced(path, b"CREATE TABLE snapshots", b"")
    replaced(path, b"tablesnapshots", b"table")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no database": lambda path: path.write_bytes(b"something else " * 1000),
    "head": lambda path: overwritten(path, 0, 100),
    "schema": lambda path: overwritten(path, 100, 3996),
    "all but the head and the schema": lambda path: overwritten(path, 4096, path.stat().st_size - 4096),
    "cut off": lambda path: os.truncate(path, 8192),
    "a schema that is not text": schema_overwritten,
    "a table of another name": lambda path: replaced(path, b"payloads", b"payload5"),
    "foreign": lambda path: foreign(path, 0),
    "foreign, with a version of an earlier release": lambda path: foreign(path, 1),
    "foreign, with the version of this release": lambda path: foreign(path, SCHEMA_VERSION),
    "of an earlier release": of_an_earlier_release,
}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return DAMAGES[request.param]


def test_damaged_file_is_moved_aside(
    store: SqlRepository, path: Path, damage: Callable[[Path], object]
) -> None:
    add(store, sealed=bytes(MIB))
    outcome(store.close())
    damage(path)
    content = path.read_bytes()
    with capturedLogs() as events:
        assert load(store) is None
        assert add(store)
    assert load(store) == b"sealed"
    assert path.with_name(f"{DATABASE_FILE}.unusable").read_bytes() == content
    (warning,) = [event for event in events if event["log_namespace"] == sqlite_module.__name__]
    assert str(path) in formatEvent(warning)


def test_only_the_latest_damaged_file_is_kept(store: SqlRepository, path: Path, tmp_path: Path) -> None:
    for content in (b"something else", b"something else again"):
        outcome(store.close())
        path.write_bytes(content * 1000)
        add(store)
    outcome(store.close())
    assert {file.name for file in tmp_path.iterdir()} == {DATABASE_FILE, f"{DATABASE_FILE}.unusable"}
    assert path.with_name(f"{DATABASE_FILE}.unusable").read_bytes() == content * 1000


def test_empty_file_is_initialized(store: SqlRepository, path: Path) -> None:
    path.touch()
    assert add(store)
    assert not path.with_name(f"{DATABASE_FILE}.unusable").exists()


def test_file_of_an_earlier_version_is_migrated(store: SqlRepository, path: Path) -> None:
    add(store)
    outcome(store.close())
    column = "ALTER TABLE snapshots ADD COLUMN made_up INTEGER NOT NULL DEFAULT 7"
    migrations = {SCHEMA_VERSION: lambda connection: connection.exec_driver_sql(column).close()}
    with closing(SqliteDatabase(path, TABLES, SCHEMA_VERSION + 1, migrations)) as later:
        rows = later.transact(
            lambda connection: connection.exec_driver_sql(
                "SELECT key, sealed, made_up FROM snapshots JOIN payloads USING (key, generation)"
            ).all()
        )
    assert [tuple(row) for row in rows] == [(KEY, b"sealed", 7)]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)


def test_file_of_a_later_release_is_refused_and_kept(store: SqlRepository, path: Path) -> None:
    add(store)
    outcome(store.close())
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    content = path.read_bytes()
    with pytest.raises(
        StoreFailed, match=f"version {SCHEMA_VERSION + 1}, this release supports {SCHEMA_VERSION}"
    ):
        load(store)
    assert path.read_bytes() == content


def test_processes_share_the_successor_of_a_damaged_file(
    store: SqlRepository, path: Path, tmp_path: Path
) -> None:
    other = repository_in(tmp_path)
    add(store, sealed=bytes(MIB))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert load(other)
    overwritten(path, 4096, path.stat().st_size - 4096)
    with capturedLogs():
        assert add(store, b"new")
    names = {
        f"{DATABASE_FILE}{aside}{beside}" for aside in ("", ".unusable") for beside in ("", "-wal", "-shm")
    }
    assert {file.name for file in tmp_path.iterdir()} == names
    assert load(store, b"new") == b"sealed"
    assert load(other, b"new") == b"sealed"
    assert add(other, b"newer")
    outcome(other.close())
    assert load(store, b"newer") == b"sealed"
    outcome(store.close())
    assert is_sound(path)


def test_file_replaced_by_another_process_is_used(store: SqlRepository, path: Path) -> None:
    add(store, sealed=bytes(MIB))
    outcome(store.close())
    overwritten(path, 4096, path.stat().st_size - 4096)
    file = SqliteDatabase(path, MetaData(), SCHEMA_VERSION)

    tries: list[Connection] = []

    def work(connection: Connection) -> int:
        tries.append(connection)
        if len(tries) == 1:
            with capturedLogs():
                add(store, b"new")
        return int(connection.exec_driver_sql("SELECT count(*) FROM payloads").scalar_one())

    assert (file.transact(work), len(tries)) == (1, 2)
    file.close()
    assert load(store, b"new") == b"sealed"


def test_invalid_utf_8_in_a_row_is_damage(store: SqlRepository, path: Path) -> None:
    outcome(store.save_mounts([StoredMount(b"r", KEY, 1, "5f" * 32, T)], T))
    outcome(store.close())
    replaced(path, b"5f" * 32, b"")
    with capturedLogs():
        assert outcome(store.find_mount(b"r")) is None
    assert path.with_name(f"{DATABASE_FILE}.unusable").exists()


def test_removed_file_is_created_again(store: SqlRepository, tmp_path: Path) -> None:
    add(store)
    for file in tmp_path.iterdir():
        file.unlink()
    assert load(store) is None
    assert add(store)
    descriptors = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
    targets = [str(link.readlink()) for link in descriptors]
    ours = [target for target in targets if target.startswith(str(tmp_path))]
    assert ours
    assert not [target for target in ours if target.endswith(" (deleted)")]
    outcome(store.close())
    assert load(store) == b"sealed"


# The disk.


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_is_a_store_failure(store: SqlRepository, path: Path) -> None:
    add(store)
    with no_file_larger_than(MIB):
        with pytest.raises(StoreFailed):
            add(store, b"large", bytes(2 * MIB))
        assert load(store) == b"sealed"
        assert load(store, b"large") is None
        assert add(store, b"small")
    assert add(store, b"large", bytes(2 * MIB))
    assert load(store, b"large") == bytes(2 * MIB)
    assert is_sound(path)


def test_disk_full_from_the_start_is_a_store_failure(store: SqlRepository) -> None:
    with no_file_larger_than(0), pytest.raises(StoreFailed):
        add(store)
    assert add(store)


def test_directory_may_appear_later(tmp_path: Path) -> None:
    store = repository_in(tmp_path / "later")
    with pytest.raises(StoreFailed, match=os.strerror(errno.ENOENT)):
        load(store)
    (tmp_path / "later").mkdir()
    assert add(store)
    outcome(store.close())


@pytest.fixture
def forbidden() -> Iterator[Path]:
    """A directory that nobody may write to, and nobody is who runs the test."""
    directory = Path(tempfile.mkdtemp())  # whoever it is may enter what is above it
    yield directory
    shutil.rmtree(directory)


@contextmanager
def without_privileges(directory: Path) -> Iterator[None]:
    user = os.geteuid()
    directory.chmod(0o555)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(0o755)


@pytest.mark.parametrize("there_already", [False, True])
def test_unwritable_directory_is_a_store_failure(forbidden: Path, there_already: object) -> None:
    store = repository_in(forbidden)
    if there_already:
        add(store)
        outcome(store.close())
    before = sorted(forbidden.iterdir())
    with without_privileges(forbidden):
        with pytest.raises(StoreFailed):
            load(store)
        with pytest.raises(StoreFailed):
            add(store)
    assert sorted(forbidden.iterdir()) == before
