"""A database that another process has locked: who waits, for how long, and what is stored later."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.common.concurrency.circuit_breaker import PAUSE_SECONDS, CircuitBreaker
from image_service.server.snapshots.build_snapshots import open_repository
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.repository import StoredMount
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE
from image_service.settings.upstream import SnapshotSettings
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.snapshots.outcomes import run_now
from tests.server.snapshots.pinning import KEY, OTHERS, customization
from tests.server.snapshots.repositories import Threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.snapshots.storage.snapshot import Question, Snapshot

T = TypeVar("T")


class CountingThreads(Threads):
    """Threads that count what they run."""

    run = 0

    def __call__(self, work: Callable[[], T], /) -> Deferred[T]:
        self.run += 1
        return super().__call__(work)


@async_fixture
async def threads(reactor: EPollReactor) -> AsyncIterator[CountingThreads]:
    threads = CountingThreads(reactor, 2)
    yield threads
    threads.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def add(archive: SealedRepository, question: Question, text: str, clock: Clock) -> Snapshot:
    seal = archive.seal_of(question)
    return await archive.add(question.key, seal, customization(text), after=0, at=clock.seconds())


@async_fixture
async def archive(tmp_path: Path, threads: CountingThreads, clock: Clock) -> AsyncIterator[SealedRepository]:
    to_read, to_write = CircuitBreaker(threads, clock), CircuitBreaker(threads, clock)
    repository = open_repository(tmp_path, to_read, to_write, SnapshotSettings())
    yield SealedRepository(repository, SnapshotCipher(bytes(32)), run_now, clock)
    await repository.close()


@ensure_deferred
async def test_locked_database_is_tried_once_and_stored_to_when_it_is_free(
    archive: SealedRepository, threads: CountingThreads, clock: Clock, tmp_path: Path
) -> None:
    key, *others = OTHERS
    known = await add(archive, KEY, "known", clock)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        new = await add(archive, key, "new", clock)
        assert new.generation < 0
        assert await archive.load(new) is not None
        assert await archive.load_newest(KEY.key, known.seal) is not None, "reading goes on"
        before = threads.run
        for each in others:
            unstored = await add(archive, each, "new", clock)
            assert unstored.generation < 0
        assert threads.run == before, "the store is left alone"
        other.execute("ROLLBACK")
    clock.advance(PAUSE_SECONDS)
    await archive.record_validation(new, clock.seconds())
    assert new.generation > 0
    assert await archive.load_newest(key.key, new.seal) is not None


@ensure_deferred
async def test_mounts_that_wait_are_stored_before_the_database_is_closed(
    tmp_path: Path, threads: CountingThreads
) -> None:
    repository = open_repository(tmp_path, threads, threads, SnapshotSettings())
    mounts = [StoredMount(number.to_bytes(32), bytes(32), 1, "5f" * 32, 1.0) for number in range(3)]
    saving = [Deferred.fromCoroutine(repository.save_mounts([mount], 1.0)) for mount in mounts]
    await repository.close()
    assert all(each.called for each in saving)
    assert [await repository.find_mount(mount.reader) for mount in mounts] == mounts
    await repository.close()
