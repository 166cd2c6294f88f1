"""What a power failure leaves of the snapshots in SQLite: all up to some write, and each of them whole.

A power failure during a checkpoint keeps the WAL and loses some pages of the database file. The snapshots
that SQLite synced before are still there.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from image_service.server.snapshots.storage.repository import StoredMount
from tests.pytwisted import ensure_deferred
from tests.server.snapshots.repositories import repository_in
from tests.simulation.disk import PowerFailure, SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.server.snapshots.storage.sql_repository import SqlRepository

KEY, READER = b"k" * 32, b"r" * 32
AT = 1_700_000_000.0
MOST_WRITES = 12


def payload(generation: int) -> bytes:
    """Return random bytes for the row of a generation, which fill one to three pages of the database file."""
    return Random(generation).randbytes(3000 * (1 + generation % 4))


async def write(repository: SqlRepository, generation: int) -> None:
    """Store a generation, and then a mount that reads it."""
    assert await repository.add(KEY, generation, payload(generation), AT + generation)
    await repository.save_mounts([StoredMount(READER, KEY, generation, "0" * 64, AT + generation)], AT + 100)


def has_unusable(directory: Path) -> bool:
    """Return True if a file was replaced because it was damaged."""
    return any(directory.glob("*.unusable"))


def checkpoint(directory: Path) -> None:
    """Have SQLite copy the pages of the WAL to the database file; the WAL stays."""
    (path,) = (path for path in directory.iterdir() if (directory / f"{path.name}-wal").exists())
    with closing(sqlite3.connect(path)) as connection:
        ((is_busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert not is_busy


@pytest.mark.parametrize("seed", range(24))
@ensure_deferred
async def test_power_failure_takes_only_the_latest_writes(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    disk = SimulatedDisk(tmp_path, chance)
    repository = repository_in(tmp_path)
    await write(repository, 1)
    await repository.close()  # which syncs the file
    disk.sync()
    repository = repository_in(tmp_path)
    writes, synced = chance.randrange(1, MOST_WRITES), 1
    for generation in range(2, 2 + writes):
        await write(repository, generation)
        if chance.random() < 0.3:
            disk.write_back()
        if chance.random() < 0.2:
            disk.sync()  # SQLite syncs the WAL before a checkpoint, and the database file after it
            checkpoint(tmp_path)
            synced = generation
            if chance.random() < 0.5:
                break
            disk.sync()
    disk.steps_left = 1
    with suppress(PowerFailure):
        disk.step()
    await repository.close()  # of the process, to which nothing of this matters any more
    disk.restart()

    repository = repository_in(tmp_path)
    newest, mount = await repository.find_newest(KEY), await repository.find_mount(READER)
    assert newest is not None
    assert mount is not None
    assert await repository.load(KEY, newest.generation) == payload(newest.generation)
    assert newest.generation >= synced
    assert newest.generation in {mount.generation, mount.generation + 1}
    await write(repository, newest.generation + 1)
    await repository.close()
    disk.close()
    assert not has_unusable(tmp_path)
