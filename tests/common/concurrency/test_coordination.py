from __future__ import annotations

import errno
import mmap
import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from image_service.common.concurrency.coordination import (
    COUNT,
    LOCK_TIMEOUT_SECONDS,
    MAX_POLL_SECONDS,
    POLL_SECONDS,
    SIZE_BYTES,
    Coordination,
    SharedMemoryCoordination,
)
from image_service.common.concurrency.file_locks import FileLocks
from tests.server.snapshots.outcomes import Outcome, outcome

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Holder:
    """Acquires a lock, and holds it until `done` fires."""

    def __init__(self, coordination: Coordination, key: bytes = KEY) -> None:
        self.has_lock = False
        self.done: Deferred[None] = Deferred()
        self.outcome = Outcome(self._hold(coordination, key))

    async def _hold(self, coordination: Coordination, key: bytes) -> None:
        async with coordination.lock(key):
            self.has_lock = True
            await self.done


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def processes(tmp_path: Path, clock: Clock) -> list[SharedMemoryCoordination]:
    memory = memoryview(bytearray(SIZE_BYTES))
    return [SharedMemoryCoordination(memory, tmp_path / "locks", clock) for _ in range(3)]


def over(memory: memoryview) -> SharedMemoryCoordination:
    """Coordination whose locks are not used."""
    return SharedMemoryCoordination(memory, Path("/nonexistent"), Clock())


# Locks.


def test_one_process_at_a_time_holds_a_lock(processes: list[SharedMemoryCoordination], clock: Clock) -> None:
    holders = [Holder(process) for process in processes]
    for number in range(len(holders)):
        assert [holder.has_lock for holder in holders].count(True) == number + 1
        next(each for each in holders if each.has_lock and not each.done.called).done.callback(None)
        clock.advance(MAX_POLL_SECONDS)
    assert all(holder.outcome.has_fired for holder in holders)
    assert clock.getDelayedCalls() == []


def test_locks_of_two_keys_are_independent(processes: list[SharedMemoryCoordination]) -> None:
    one, other = Holder(processes[0]), Holder(processes[1], OTHER_KEY)
    assert (one.has_lock, other.has_lock) == (True, True)
    for holder in (one, other):
        holder.done.callback(None)


def test_released_lock_is_acquired_soon_without_frequent_polling(
    processes: list[SharedMemoryCoordination], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    lock = FileLocks.try_lock

    def counted(locks: FileLocks, name: str) -> AbstractContextManager[bool]:
        tried.append(name)
        return lock(locks, name)

    monkeypatch.setattr(FileLocks, "try_lock", counted)
    one, other = (Holder(process) for process in processes[:2])
    for _ in range(100):
        clock.advance(POLL_SECONDS)
    assert len(tried) < 100 * POLL_SECONDS / MAX_POLL_SECONDS + 10
    one.done.callback(None)
    clock.advance(MAX_POLL_SECONDS)
    assert other.has_lock
    other.done.callback(None)


def test_lock_is_released_after_a_failure(processes: list[SharedMemoryCoordination]) -> None:
    one = Holder(processes[0])
    one.done.errback(ValueError("of the holder"))
    assert isinstance(one.outcome.error, ValueError)
    other = Holder(processes[1])
    assert other.has_lock
    other.done.callback(None)


def test_lock_of_a_killed_process_is_released(
    tmp_path: Path, processes: list[SharedMemoryCoordination], clock: Clock
) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with FileLocks(tmp_path / "locks").try_lock(KEY.hex()):
            os.write(writing, b"locked")
            signal.pause()
    os.read(reading, 6)
    holder = Holder(processes[0])
    assert [holder.has_lock] == [False]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    clock.advance(MAX_POLL_SECONDS)
    assert holder.has_lock
    holder.done.callback(None)


def test_lock_of_a_hanging_process_is_waited_for_until_the_timeout(
    processes: list[SharedMemoryCoordination], clock: Clock
) -> None:
    hanging, other = (Holder(process) for process in processes[:2])
    clock.pump([POLL_SECONDS] * int(LOCK_TIMEOUT_SECONDS / 2 / POLL_SECONDS))
    assert [other.has_lock] == [False]
    clock.pump([POLL_SECONDS] * int(LOCK_TIMEOUT_SECONDS / POLL_SECONDS))
    assert other.has_lock
    for holder in (other, hanging):
        holder.done.callback(None)
        assert holder.outcome.has_fired


def test_without_a_usable_lock_file_nothing_is_locked_and_an_error_is_logged(
    processes: list[SharedMemoryCoordination], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(FileLocks, "try_lock", fail)
    with capturedLogs() as logs:
        holder = Holder(processes[0])
    assert holder.has_lock
    assert "too many open files" in str(logs)
    holder.done.callback(None)


# Versions.


def test_key_that_was_never_bumped_has_version_0() -> None:
    coordination = over(memoryview(bytearray(SIZE_BYTES)))
    assert {coordination.counter(secrets.token_bytes(32)) for _ in range(1000)} == {0}


def test_bump_changes_the_version_of_its_key_alone() -> None:
    coordination = over(memoryview(bytearray(SIZE_BYTES)))
    seen = set()
    for _ in range(100):
        bumped = coordination.bump(KEY)
        assert coordination.counter(KEY) == bumped
        seen.add(bumped)
    assert len(seen) == 100
    assert 0 not in seen
    assert coordination.counter(OTHER_KEY) == 0


def test_random_digests_rarely_share_a_counter() -> None:
    memory = memoryview(bytearray(SIZE_BYTES))
    keys = [secrets.token_bytes(32) for _ in range(1000)]
    versions = {key: over(memory).bump(key) for key in (*keys, b"\xff" * 32, bytes(32))}
    kept = sum(over(memory).counter(bytes(key)) == version for key, version in versions.items())
    assert kept > 900, "hardly any two share a version"


def test_processes_over_one_memory_see_each_other() -> None:
    memory = memoryview(bytearray(SIZE_BYTES + 5))
    one, two = over(memory), over(memory)
    assert two.counter(KEY) != one.bump(KEY) == two.counter(KEY) != 0


def test_another_process_sees_a_bump() -> None:
    coordination = over(memoryview(mmap.mmap(-1, SIZE_BYTES)))
    child = os.fork()
    if child == 0:
        coordination.bump(KEY)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert coordination.counter(KEY) != 0


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(IndexError):
        over(memoryview(bytearray(SIZE_BYTES - 24))).bump((COUNT - 1).to_bytes(8))


def test_watch_is_true_until_one_of_its_keys_is_bumped() -> None:
    memory = memoryview(bytearray(SIZE_BYTES))
    coordination = over(memory)
    coordination.bump(KEY)
    is_unchanged = coordination.watch(KEY, OTHER_KEY)
    coordination.bump(b"u" * 32)
    assert is_unchanged()
    over(memory).bump(OTHER_KEY)
    assert not is_unchanged()
    assert coordination.watch(KEY, OTHER_KEY)()


# What others have to see.


async def _false() -> bool:
    return False


def test_work_is_published_where_there_are_others(processes: list[SharedMemoryCoordination]) -> None:
    assert outcome(processes[0].run_if_shared(_false)) is False


def test_a_write_is_waited_for_where_there_are_others(processes: list[SharedMemoryCoordination]) -> None:
    write: Deferred[None] = Deferred()
    assert processes[0].until_visible(write) is write
    write.callback(None)
    assert processes[0].until_visible(write) is None


# One process.


def test_local_coordination_never_waits_and_sees_no_change() -> None:
    local = Coordination()
    one, other = Holder(local), Holder(local)
    assert (one.has_lock, other.has_lock) == (True, True)
    one.done.callback(None)
    other.done.callback(None)
    is_unchanged = local.watch(KEY)
    assert local.counter(KEY) == local.bump(KEY) == local.counter(KEY)
    assert is_unchanged()
    assert outcome(local.run_if_shared(_false)) is True
    assert local.until_visible(Deferred()) is None
