"""The block cache of one process: every byte as the origin has it, within the budget, after any restart."""

from __future__ import annotations

import errno
import hashlib
import os
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.common.files.block_cache import block_cache, version_files
from image_service.common.files.block_cache.read_ahead import MAX_AHEAD, ReadAhead
from image_service.common.files.block_cache.source import DigestMismatch, OriginChanged, OriginFailed
from image_service.common.files.block_cache.version_files import PRESENT
from tests.common.files.block_cache.caches import MIB, SMALLEST, open_cache, opened, present, temporary_cache
from tests.common.files.block_cache.origin import POISON, Origin, content, digests_of, identity_of

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.core.base_file import BaseFile

RANGES = st.tuples(st.integers(0, 400 * MIB), st.sampled_from([1, 4096, 65536, 2 * MIB + 5]))


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 400 * MIB), ranges=st.lists(RANGES, max_size=40))
def test_bytes_are_those_of_the_origin(size: int, ranges: list[tuple[int, int]]) -> None:
    with temporary_cache() as cache:
        file = cache.open(identity_of(size), Origin(), digests_of(1))
        file = cache.open(identity_of(size, "other"), Origin())
        for start, length in ranges:
            offset = start % size
            assert file.read_at(offset, length) == content(offset, min(length, size - offset))
        file.close()
        assert cache.allocated_bytes() <= SMALLEST


def test_granule_is_fetched_once(tmp_path: Path) -> None:
    started = threading.Event()
    origin = Origin(before=lambda *_: started.wait(10))
    with open_cache(tmp_path) as cache, ThreadPoolExecutor(16) as pool:
        file = cache.open(identity_of(8 * MIB), origin)
        reads = [pool.submit(file.read_at, 3 * MIB + 9 * index, 9) for index in range(16)]
        started.set()
        assert [read.result() for read in reads] == [content(3 * MIB + 9 * index, 9) for index in range(16)]
        assert origin.granules == [3]
        file.close()


def test_processes_share_what_is_present_and_what_is_fetched(tmp_path: Path) -> None:
    first, second = Origin(), Origin()
    with open_cache(tmp_path) as one, open_cache(tmp_path) as other:
        file = one.open(identity_of(8 * MIB), first)
        same = other.open(identity_of(8 * MIB), second)
        file.read_at(0, 5 * MIB)
        assert same.read_at(0, 5 * MIB) == content(0, 5 * MIB)
        assert second.fetched == []
        fetching, go_on = threading.Event(), threading.Event()

        def wait(*_: int) -> None:
            fetching.set()
            go_on.wait(10)

        first.before = wait
        with ThreadPoolExecutor(2) as pool:
            slow = pool.submit(file.read_at, 6 * MIB, 5)
            fetching.wait(10)
            waiting = pool.submit(same.read_at, 6 * MIB + 5, 5)
            go_on.set()
            assert slow.result() + waiting.result() == content(6 * MIB, 10)
        file.close()
        same.close()


def test_a_process_that_takes_long_is_not_waited_for(tmp_path: Path) -> None:
    go_on = threading.Event()
    with open_cache(tmp_path) as one, open_cache(tmp_path) as other, ThreadPoolExecutor(1) as pool:
        file = one.open(identity_of(8 * MIB), Origin(before=lambda *_: go_on.wait(60)))
        same = other.open(identity_of(8 * MIB), Origin())
        stuck = pool.submit(file.read_at, 0, 5)
        assert same.read_at(0, 5) == content(0, 5)
        go_on.set()
        assert stuck.result() == content(0, 5)
        file.close()
        same.close()


@pytest.mark.parametrize("error", [OriginFailed("answered 500"), OriginChanged("has another ETag")])
def test_failure_of_the_origin_reaches_the_reader_and_the_next_try_succeeds(
    tmp_path: Path, error: OriginFailed
) -> None:
    def fail(*_: int) -> None:
        raise error

    origin = Origin(before=fail)
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(MIB), origin)
        with pytest.raises(type(error)):
            file.read_at(0, 1)
        assert present(file) == []
        origin.before = lambda *_: None
        assert file.read_at(0, 9) == content(0, 9)
        assert (cache.counters.failed_fetches, cache.counters.fetches) == (1, 1)
        file.close()


def test_granule_without_its_digest_is_not_served(tmp_path: Path) -> None:
    def damage(_: int, target: memoryview) -> None:
        target[-1] ^= 1

    origin = Origin(damage=damage)
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(3 * MIB + 5), origin, digests_of(3 * MIB + 5))
        with pytest.raises(DigestMismatch, match="offset 3145728"):
            file.read_at(3 * MIB, 1)
        assert present(file) == []
        origin.damage = lambda *_: None
        assert file.read_at(3 * MIB, 9) == content(3 * MIB, 5)
        assert cache.counters.digest_faults == 1
        file.close()


def test_budget_holds_and_used_granules_stay(tmp_path: Path) -> None:
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(400 * MIB), Origin())
        for granule in range(0, 400, 2):
            file.read_at(granule * MIB, 1)
            assert cache.allocated_bytes() <= SMALLEST
            assert file.residency is not None
            file.residency.resident_bytes(file, 0, 1)
            file.read_at(0, 1)
        assert 0 in present(file)
        assert cache.allocated_bytes() > 0.85 * SMALLEST
        evicted = cache.counters.evicted_granules
        assert evicted >= 200 - 128
        for granule in range(0, 400, 2):
            file.read_at(granule * MIB, 1)
        assert 0 < cache.counters.refetched_granules <= cache.counters.evicted_granules
        file.close()


def test_pinned_and_held_granules_are_not_evicted(tmp_path: Path) -> None:
    origin = Origin()
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(400 * MIB), origin)
        cache.pin(file_identity := identity_of(400 * MIB), 10 * MIB, 20 * MIB)
        with file.hold(50 * MIB, 10 * MIB):
            for granule in range(399, 60, -1):
                file.read_at(granule * MIB, 1)
            assert {*range(10, 30), *range(50, 60)} < {*present(file)}
        assert all(origin.granules.count(granule) == 1 for granule in (*range(10, 30), *range(50, 60)))
        assert cache.local_bytes(file_identity) == len(present(file)) * MIB
        with pytest.raises(OSError, match="pinned") as caught:
            cache.pin(file_identity, 100 * MIB, 45 * MIB)
        assert caught.value.errno == errno.ENOSPC
        file.close()


def test_hold_of_more_than_the_budget_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("image_service.common.files.block_cache.budget.SPACE_SECONDS", 0.0)
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(400 * MIB), Origin())
        with pytest.raises(OSError, match="in use"), file.hold():
            pass
        assert file.read_at(399 * MIB, 5) == content(399 * MIB, 5)
        file.close()


def test_restart_takes_up_the_cache(tmp_path: Path) -> None:
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(20 * MIB), Origin())
        file.read_at(0, 10 * MIB)
        file.close()
    origin = Origin()
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(20 * MIB), origin)
        assert file.read_at(0, 10 * MIB) == content(0, 10 * MIB)
        assert origin.fetched == []
        file.close()


def test_after_another_boot_only_intact_granules_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine crashed: granules 2 and 3 are lost, although the map has them."""
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(9 * MIB + 7), Origin())
        file.read_at(0, 10 * MIB)
        with open(file.path, "r+b") as damaged:  # noqa: PTH123 - BaseFile has its path as text
            damaged.seek(2 * MIB)
            damaged.write(bytes(MIB))
            damaged.seek(4 * MIB - 1)
            damaged.write(POISON)
        file.close()
    monkeypatch.setattr(block_cache, "read_boot_id", lambda: "another")
    origin = Origin()
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(9 * MIB + 7), origin)
        assert present(file) == []
        assert file.residency is not None
        assert file.residency.resident_bytes(file, 0, 1) == 0
        assert file.read_at(0, 10 * MIB) == content(0, 9 * MIB + 7)
        assert sorted(origin.granules) == [2, 3]
        file.close()


def test_granule_that_could_not_be_compared_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(MIB), Origin())
        file.read_at(0, 1)
        file.close()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(block_cache, "read_boot_id", lambda: "another")
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(MIB), Origin())
        with monkeypatch.context() as faulty:
            faulty.setattr(version_files.VersionFiles, "verify", fail)
            with pytest.raises(OSError, match="Input/output"):
                file.read_at(0, 1)
        assert file.read_at(0, 9) == content(0, 9)
        file.close()


def test_thread_that_cannot_be_started_fails_the_read_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(20 * MIB), Origin())
        with monkeypatch.context() as faulty:
            faulty.setattr(threading.Thread, "start", fail)
            for number in range(20):
                with pytest.raises(OSError, match="no thread"):
                    file.read_at(number * MIB, 1)
        assert file.read_at(0, 20 * MIB) == content(0, 20 * MIB)
        file.close()


def test_versions_that_nobody_names_or_uses_are_removed(tmp_path: Path) -> None:
    named, used, old = (identity_of(2 * MIB, name) for name in ("named", "used", "old"))
    with open_cache(tmp_path) as cache, open_cache(tmp_path) as other:
        for identity in (named, old):
            cache.open(identity, Origin()).close()
        (tmp_path / "unfinished").mkdir()
        file = other.open(used, Origin())
        cache.remove_others([named])
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {named.digest, used.digest}
        assert file.read_at(0, 5) == content(0, 5)
        file.close()


def test_what_a_killed_writer_has_left_is_freed(tmp_path: Path) -> None:
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(400 * MIB), Origin())
        with opened(file) as files:
            for granule in range(300, 400):
                os.pwrite(files.data, POISON * MIB, granule * MIB)
        for granule in range(300):
            assert file.read_at(granule * MIB, 5) == content(granule * MIB, 5)
            assert cache.allocated_bytes() <= SMALLEST
        file.close()


def test_full_disk_evicts_and_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failures = version_files.VersionFiles.write, [errno.ENOSPC]

    def write_or_fail(files: version_files.VersionFiles, granule: int, *more: object) -> None:
        if granule == 20 and failures:
            raise OSError(failures.pop(), "no space left")
        write(files, granule, *more)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(version_files.VersionFiles, "write", write_or_fail)
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(40 * MIB), Origin())
        for granule in range(40):
            assert file.read_at(granule * MIB, 5) == content(granule * MIB, 5)
        assert cache.counters.evicted_granules > 0
        file.close()


def test_other_file_in_the_place_of_a_map_is_replaced(tmp_path: Path) -> None:
    directory = tmp_path / identity_of(MIB).digest
    directory.mkdir()
    (directory / "map").write_bytes(POISON * 5000)
    (directory / "data").write_bytes(POISON * MIB)
    with open_cache(tmp_path) as cache:
        file = cache.open(identity_of(MIB), Origin())
        assert file.read_at(0, 5) == content(0, 5)
        file.close()


def evict_all(file: BaseFile, cache: block_cache.BlockCache) -> None:
    while present(file):
        cache._budget.evict(MIB, disk_is_full=True)


def test_what_a_sender_has_found_present_is_there_until_its_reactor_turns(tmp_path: Path) -> None:
    with (
        open_cache(tmp_path) as evicting,
        open_cache(tmp_path) as sending,
        ThreadPoolExecutor(1) as pool,
    ):
        file = sending.open(identity_of(4 * MIB), Origin())
        file.read_at(0, 4 * MIB)
        sending.start()
        assert file.residency is not None
        assert file.residency.resident_bytes(file, 0, 4 * MIB) == 4 * MIB
        eviction = pool.submit(evicting._budget.evict, 4 * MIB, disk_is_full=True)
        while present(file):
            select.select([], [], [], 0.001)
        assert os.pread(file.descriptor, 4 * MIB, 0) == content(0, 4 * MIB), "while it may be sent"
        assert not eviction.done()
        sending._reactor.advance(block_cache.EPOCH_SECONDS)
        assert eviction.result()
        assert os.pread(file.descriptor, 4 * MIB, 0) == bytes(4 * MIB)
        assert file.residency.resident_bytes(file, 0, 1) == 0
        sending.end_senders()
        file.close()


@pytest.mark.parametrize("reread", [False, True])
def test_what_is_in_a_socket_outlives_eviction(tmp_path: Path, *, reread: bool) -> None:
    """A punch overwrites, in place, what shares a large folio with its neighbor; sockets refer to folios."""
    with open_cache(tmp_path, 256 * MIB) as cache:
        file = cache.open(identity_of(64 * MIB), Origin())
        file.read_at(0, 64 * MIB)
        if reread:
            os.fsync(file.descriptor)
            os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        sender, receiver = socket.socketpair()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MIB)
        sender.setblocking(False)  # noqa: FBT003 - its signature
        sent = 0
        while sent < 64 * MIB:
            try:
                sent += os.sendfile(sender.fileno(), file.descriptor, 5 * MIB + sent, 4 * MIB)
            except BlockingIOError:
                break
        evict_all(file, cache)
        sender.close()
        received = b"".join(iter(lambda: receiver.recv(MIB), b""))
        receiver.close()
        assert received == content(5 * MIB, sent)
        assert sent >= MIB
        file.close()


def test_sequential_readers_are_read_ahead_of() -> None:
    read_ahead = ReadAhead(1000)
    fetched, spans = {0}, []
    for granule in range(100):
        ahead = read_ahead.begin(granule)
        assert not fetched & {*ahead}
        assert granule in fetched or granule == 1
        fetched |= {granule, *ahead}
        spans.append(len(ahead))
        assert max(fetched) <= granule + MAX_AHEAD
    assert spans[:2] == [0, 1]
    assert max(spans) >= 8
    assert [*read_ahead.begin(500)] == []


@given(st.lists(st.integers(0, 40), max_size=200))
def test_read_ahead_stays_in_the_file(granules: list[int]) -> None:
    read_ahead = ReadAhead(41)
    for granule in granules:
        ahead = read_ahead.begin(granule)
        assert not ahead or granule < ahead.start <= ahead.stop <= 41
        assert len(ahead) <= MAX_AHEAD


def test_digest_names_the_directory() -> None:
    identity = identity_of(5)
    assert (
        identity.digest == hashlib.sha256(b'https://origin.example.org/base.iso\n"1"\n5\n1048576').hexdigest()
    )
    assert PRESENT == 1
