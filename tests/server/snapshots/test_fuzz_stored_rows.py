"""Fuzz target: a database in which any value may be any other, over the sealed repository."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.core.images.reference import ImageRef, Kind, Reader
from image_service.server.assisted.responses import InfraEnv
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.repository import StoredMount
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.server.snapshots.storage.snapshot import Snapshot
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE, TABLES
from tests.server.snapshots.outcomes import outcome, run_now
from tests.server.snapshots.pinning import KEY, NOW, OTHERS, SECRET, customization
from tests.server.snapshots.repositories import repository_in

if TYPE_CHECKING:
    from image_service.core.images.customization import Customization
    from image_service.server.snapshots.storage.snapshot import Question
    from image_service.server.snapshots.storage.sql_repository import SqlRepository

Database: TypeAlias = "tuple[Path, dict[Question, list[Customization]]]"
Place: TypeAlias = tuple[str, str]
"""A table and a column."""
Value: TypeAlias = int | float | str | bytes | None

KEYS = (KEY, *OTHERS)
MEMORY = "/dev/shm"
COLUMNS = [(table.name, column.name) for table in TABLES.sorted_tables for column in table.columns]
GENERATIONS = 2
ADDRESS = "192.0.2.1"

values = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0, 1, -1, 2**62, 9e18, -9e18, float("inf"), float("-inf"), 5e-324, "", "x", b""])
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=40)
)
rows = st.integers(0, 11)
assignments = st.tuples(st.sampled_from(COLUMNS), rows, values)
swaps = st.tuples(st.sampled_from(COLUMNS), rows, rows)
damages = st.tuples(rows, st.integers(0, 400), st.integers(0, 400), st.binary(max_size=8))


def sealed_over(repository: SqlRepository) -> SealedRepository:
    clock = Clock()
    clock.advance(NOW)
    return SealedRepository(repository, SnapshotCipher(SECRET), run_now, clock, lambda: NOW)


def answer_of(key: Question, generation: int) -> Customization:
    return customization(f"{key} {generation}")


def infra_env_of(key: Question) -> InfraEnv:
    return InfraEnv((), f"{key.infra_env_id} {key.key.credentials_digest!r}", Kind.FULL_ISO, "x86_64")


def reader_of(key: Question) -> Reader:
    return Reader(ADDRESS, key.credentials, ImageRef(key.infra_env_id, "4", "x86_64", key.kind))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Return a database with snapshots, mounts and infra-envs of several keys, and their answers."""
    directory = tmp_path_factory.mktemp("stored")
    repository = repository_in(directory)
    sealed = sealed_over(repository)
    answers = {key: [answer_of(key, number) for number in range(GENERATIONS)] for key in KEYS}
    for key in KEYS:
        snapshots = [
            outcome(sealed.add(key.key, sealed.seal_of(key), answer, after=number, at=NOW))
            for number, answer in enumerate(answers[key])
        ]
        snapshot, reader_key = snapshots[-1], sealed.mounts.key_of(reader_of(key))
        mount = StoredMount(reader_key, snapshot.stored_key, snapshot.generation, "5f" * 32, NOW)
        outcome(sealed.mounts.save([mount]))
        seal = sealed.seal_of_infra_env(key.infra_env_id, key.credentials)
        outcome(sealed.save_infra_env(seal, infra_env_of(key), NOW))
    outcome(repository.close())
    return directory / DATABASE_FILE, answers


def change(
    connection: sqlite3.Connection,
    assigned: list[tuple[Place, int, Value]],
    swapped: list[tuple[Place, int, int]],
    damaged: list[tuple[int, int, int, bytes]],
) -> None:
    """Set values, copy values between rows, and replace bytes of payloads."""
    for (table, column), row, value in assigned:
        update(connection, table, column, row, "?", value)
    for (table, column), row, other in swapped:
        copied = f"(SELECT {column} FROM {table} LIMIT 1 OFFSET ?)"  # noqa: S608 - names of the schema
        update(connection, table, column, row, copied, other)
    for row, start, count, replacement in damaged:
        spliced = "CAST(substr(sealed, 1, ?) || ? || substr(sealed, ?) AS BLOB)"
        update(connection, "payloads", "sealed", row, spliced, start, replacement, start + count)


def update(
    connection: sqlite3.Connection, table: str, column: str, row: int, value: str, *parameters: Value
) -> None:
    found = f"(SELECT rowid FROM {table} LIMIT 1 OFFSET {row})"  # noqa: S608 - same
    statement = f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE rowid = {found}"  # noqa: S608 - same
    connection.execute(statement, parameters)


def check_key(sealed: SealedRepository, key: Question, answers: list[Customization]) -> None:
    """Check that each question about a key is answered with what was stored for it, or with nothing."""
    seal = sealed.seal_of(key)
    own = (None, *answers)
    newest = outcome(sealed.load_newest(key.key, seal))
    if newest is not None:
        assert outcome(sealed.load(newest[0])) in own
    for number, answer in enumerate(answers, start=1):
        snapshot = Snapshot(key.key, seal, number, NOW, NOW, 3)
        assert outcome(sealed.load(snapshot)) in (None, answer)
        outcome(sealed.has_ended(snapshot))
        outcome(sealed.record_validation(snapshot, NOW))
    mount = outcome(sealed.mounts.find(sealed.mounts.key_of(reader_of(key))))
    if mount is not None:
        read = Snapshot(key.key, attrs.evolve(seal, key=mount.key), mount.generation, NOW, NOW, 3)
        assert outcome(sealed.load(read)) in own
        outcome(sealed.mounts.save([mount]))
    infra_env = outcome(sealed.load_infra_env(sealed.seal_of_infra_env(key.infra_env_id, key.credentials)))
    assert infra_env is None or infra_env[0] == infra_env_of(key)


@given(st.lists(assignments, max_size=6), st.lists(swaps, max_size=4), st.lists(damages, max_size=3))
def test_fuzz_stored_rows_are_read_as_they_were_stored_or_not_at_all(
    stored: Database,
    assigned: list[tuple[Place, int, Value]],
    swapped: list[tuple[Place, int, int]],
    damaged: list[tuple[int, int, int, bytes]],
) -> None:
    file, answers = stored
    with TemporaryDirectory(dir=MEMORY) as name:
        shutil.copy(file, name)
        with closing(sqlite3.connect(Path(name) / file.name, isolation_level=None)) as connection:
            change(connection, assigned, swapped, damaged)
        repository = repository_in(Path(name))
        sealed = sealed_over(repository)
        for key in KEYS:
            check_key(sealed, key, answers[key])
        outcome(sealed.remove_unused(3600))
        outcome(repository.close())
