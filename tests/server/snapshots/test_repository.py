"""What any store of snapshots does: each of them is held to the same."""

from __future__ import annotations

import os
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred, gatherResults

from image_service.server.snapshots.build_snapshots import open_repository
from image_service.server.snapshots.storage.repository import (
    KEPT_GENERATIONS,
    NO_LAYOUT,
    StoredMount,
    StoredSnapshot,
)
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from image_service.settings.upstream import SnapshotSettings
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.repositories import Threads, postgresql_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

from image_service.server.snapshots.storage.repository import SnapshotRepository

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
READER, OTHER_READER = b"r" * 32, b"s" * 32
T = 1_700_000_000.25
BASE = "5f" * 32


@pytest.fixture(params=["memory", "sqlite-1-thread", "sqlite-4-threads", "postgresql"])
def implementation(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        request.getfixturevalue("postgres")  # may skip the test, which a fixture with a coroutine must not
    return str(request.param)


@async_fixture
async def store(
    request: pytest.FixtureRequest, reactor: EPollReactor, tmp_path: Path, implementation: str
) -> AsyncIterator[SnapshotRepository]:
    threads = Threads(reactor, 1 if implementation == "sqlite-1-thread" else 4)
    store: SnapshotRepository = MemoryRepository()
    if implementation == "postgresql":
        database = postgresql_database(request.getfixturevalue("postgres").create_database())
        store = SqlRepository(database, threads, threads, StoreLimits(1024**3, 60.0))
    elif implementation != "memory":
        store = open_repository(tmp_path, threads, threads, SnapshotSettings())
    yield store
    await store.close()
    threads.stop()


def mount(reader: bytes = READER, key: bytes = KEY, generation: int = 1, **other: Any) -> StoredMount:
    return StoredMount(reader, key, generation, **{"base_sha256": BASE, "read_at": T, **other})


@ensure_deferred
async def test_new_repository_is_empty(store: SnapshotRepository) -> None:
    assert await store.find_newest(KEY) is None
    assert await store.load(KEY, 1) is None
    assert await store.find_mount(READER) is None
    assert await store.remove_unused(T, T + 60) == 0


@ensure_deferred
async def test_payload_is_loaded_as_it_was_added(store: SnapshotRepository) -> None:
    for generation, sealed in enumerate([b"", b"\0", bytes(range(256)) * 100], 1):
        assert await store.add(KEY, generation, sealed, T)
        assert await store.load(KEY, generation) == sealed
    assert await store.load(KEY, 4) is None
    assert await store.load(OTHER_KEY, 1) is None


@ensure_deferred
async def test_payload_of_64_mib_is_stored(store: SnapshotRepository) -> None:
    sealed = os.urandom(64 * 1024 * 1024)
    assert await store.add(KEY, 1, sealed, T)
    assert await store.load(KEY, 1) == sealed


@ensure_deferred
async def test_newest_generation_of_each_key_is_found(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"", T)
    await store.add(KEY, 2, b"", T + 10)
    await store.add(OTHER_KEY, 7, b"", T - 10)
    assert await store.find_newest(KEY) == StoredSnapshot(2, T + 10, T + 10)
    assert await store.find_newest(OTHER_KEY) == StoredSnapshot(7, T - 10, T - 10)


@ensure_deferred
async def test_generations_have_layouts_of_their_own(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"", T)
    await store.add(KEY, 2, b"", T, layout=7)
    assert await store.find_newest(KEY) == StoredSnapshot(2, T, T, layout=7)
    assert [await store.find_layout(KEY, number) for number in (1, 2, 3)] == [NO_LAYOUT, 7, None]
    await store.end(KEY, T + 1)
    assert await store.find_layout(KEY, 2) is None


@ensure_deferred
async def test_first_writer_of_a_generation_wins(store: SnapshotRepository) -> None:
    assert await store.add(KEY, 1, b"first", T)
    assert not await store.add(KEY, 1, b"second", T + 1)
    assert await store.load(KEY, 1) == b"first"
    assert await store.find_newest(KEY) == StoredSnapshot(1, T, T)


@ensure_deferred
async def test_one_of_concurrent_writers_wins(store: SnapshotRepository) -> None:
    payloads = [b"%d" % number for number in range(20)]
    won = await gatherResults([Deferred.fromCoroutine(store.add(KEY, 1, payload, T)) for payload in payloads])
    assert won.count(True) == 1
    assert await store.load(KEY, 1) == payloads[won.index(True)]


@ensure_deferred
async def test_writer_of_an_older_generation_loses(store: SnapshotRepository) -> None:
    await store.add(KEY, 5, b"", T)
    assert not await store.add(KEY, 2, b"", T)
    assert await store.load(KEY, 2) is None


@ensure_deferred
async def test_oldest_generations_of_a_key_are_removed(store: SnapshotRepository) -> None:
    await store.add(OTHER_KEY, 1, b"other", T)
    for generation in range(1, KEPT_GENERATIONS + 4):
        await store.add(KEY, generation, b"%d" % generation, T)
    kept = [number for number in range(1, generation + 1) if await store.load(KEY, number)]
    assert kept == list(range(4, generation + 1))
    assert await store.load(OTHER_KEY, 1) == b"other"


@ensure_deferred
async def test_validation_replaces_also_that_of_a_clock_ahead(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"a", T)
    assert await store.record_validation(KEY, 1, T + 60)
    assert await store.find_newest(KEY) == StoredSnapshot(1, T, T + 60)
    assert await store.record_validation(KEY, 1, T + 30)
    assert await store.find_newest(KEY) == StoredSnapshot(1, T, T + 30)
    assert await store.load(KEY, 1) == b"a"


@ensure_deferred
async def test_validation_of_a_missing_generation_changes_nothing(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"", T)
    assert not await store.record_validation(KEY, 2, T + 60)
    assert not await store.record_validation(OTHER_KEY, 1, T + 60)
    assert await store.find_newest(KEY) == StoredSnapshot(1, T, T)
    assert await store.find_newest(OTHER_KEY) is None


@ensure_deferred
async def test_end_removes_all_generations_of_its_key_and_no_mounts(store: SnapshotRepository) -> None:
    for key in (KEY, OTHER_KEY):
        await store.add(key, 1, b"1", T)
        await store.add(key, 2, b"2", T)
    await store.save_mounts([mount(), mount(reader=OTHER_READER, key=OTHER_KEY)], T + 60)
    await store.end(KEY, T + 60)
    assert [await store.load(KEY, generation) for generation in (1, 2)] == [None, None]
    assert await store.find_mount(READER) == mount(), "or its reader would be given another version"
    assert [await store.load(OTHER_KEY, generation) for generation in (1, 2)] == [b"1", b"2"]
    assert await store.find_mount(OTHER_READER) == mount(reader=OTHER_READER, key=OTHER_KEY)


@ensure_deferred
async def test_refusal_is_recorded_until_the_next_validation(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"1", T)
    await store.record_refusal(KEY, 1)
    assert await store.find_newest(KEY) == StoredSnapshot(1, T, T, is_refused=True)
    assert await store.load(KEY, 1) == b"1"
    await store.record_validation(KEY, 1, T + 60)
    assert await store.find_newest(KEY) == StoredSnapshot(1, T, T + 60)
    await store.record_refusal(OTHER_KEY, 1)
    assert await store.find_newest(OTHER_KEY) is None


@ensure_deferred
async def test_refusal_is_no_use(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"1", T)
    await store.record_refusal(KEY, 1)
    assert await store.remove_unused(T + 1, T + 60) == 1


@ensure_deferred
async def test_number_of_an_ended_generation_is_not_reused(store: SnapshotRepository) -> None:
    """Another process may still hold images of it."""
    await store.add(KEY, 1, b"1", T)
    await store.add(KEY, 2, b"2", T + 1)
    await store.end(KEY, T + 60)
    assert await store.find_newest(KEY) == StoredSnapshot(2, T + 1, T + 1, is_refused=True)
    assert [await store.add(KEY, generation, b"new", T + 80) for generation in (1, 2, 3)] == [
        False,
        False,
        True,
    ]
    assert await store.find_newest(KEY) == StoredSnapshot(3, T + 80, T + 80)
    await store.end(KEY, T + 90)
    assert await store.find_newest(KEY) == StoredSnapshot(3, T + 80, T + 80, is_refused=True)


@ensure_deferred
async def test_ending_an_unknown_key_does_nothing(store: SnapshotRepository) -> None:
    await store.end(KEY, T)
    assert await store.find_newest(KEY) is None


@ensure_deferred
async def test_latest_mount_of_a_reader_is_found(store: SnapshotRepository) -> None:
    await store.save_mounts([mount(), mount(reader=OTHER_READER, generation=7)], T + 60)
    await store.save_mounts(
        [mount(key=OTHER_KEY, generation=3, base_sha256="00" * 32, read_at=T + 1)], T + 60
    )
    assert await store.find_mount(READER) == mount(
        key=OTHER_KEY, generation=3, base_sha256="00" * 32, read_at=T + 1
    )
    assert await store.find_mount(OTHER_READER) == mount(reader=OTHER_READER, generation=7)
    await store.save_mounts([mount()], T + 60)
    assert (await store.find_mount(READER) or mount()).read_at == T + 1


@ensure_deferred
async def test_mounts_are_counted_by_base_image(store: SnapshotRepository) -> None:
    assert await store.count_mounts(T) == {}
    late = mount(reader=b"late".ljust(32), base_sha256="00" * 32, read_at=T + 9)
    await store.save_mounts([mount(), mount(reader=OTHER_READER), late], T + 60)
    assert await store.count_mounts(T) == {mount().base_sha256: 2, "00" * 32: 1}
    assert await store.count_mounts(T + 9) == {"00" * 32: 1}


@ensure_deferred
async def test_reader_may_occur_twice_in_a_batch(store: SnapshotRepository) -> None:
    await store.save_mounts([mount(read_at=T + 2, generation=2), mount(read_at=T + 1, generation=1)], T + 60)
    assert await store.find_mount(READER) == mount(read_at=T + 2, generation=2)


@pytest.mark.parametrize("other", [{"key": OTHER_KEY}, {"generation": 2}, {"base_sha256": "00" * 32}])
@ensure_deferred
async def test_later_mount_of_another_version_is_not_replaced(
    store: SnapshotRepository, other: dict[str, Any]
) -> None:
    moved_on = mount(**other, read_at=T + 10)
    await store.save_mounts([moved_on], T + 60)
    for since in (T, T + 10):
        await store.save_mounts([mount(read_at=T + 20, replaces_before=since)], T + 60)
        assert await store.find_mount(READER) == moved_on
    await store.save_mounts([attrs.evolve(moved_on, read_at=T + 15, replaces_before=T)], T + 60)
    assert (await store.find_mount(READER) or mount()).read_at == T + 15
    await store.save_mounts([mount(read_at=T + 12, replaces_before=inf)], T + 60)
    assert await store.find_mount(READER) == mount(read_at=T + 12)


@ensure_deferred
async def test_mount_gets_the_number_of_a_snapshot_that_is_stored_later(store: SnapshotRepository) -> None:
    for other in ({"key": OTHER_KEY}, {"base_sha256": "00" * 32}):
        await store.save_mounts([mount(generation=-5)], T + 60)
        await store.save_mounts([mount(read_at=T + 1, replaces_before=T, **other)], T + 60)
        assert await store.find_mount(READER) == mount(generation=-5)
    await store.save_mounts([mount(generation=3, read_at=T + 1, replaces_before=T)], T + 60)
    assert await store.find_mount(READER) == mount(generation=3, read_at=T + 1)


@ensure_deferred
async def test_saving_no_mounts_does_nothing(store: SnapshotRepository) -> None:
    await store.save_mounts([], T + 60)


@ensure_deferred
async def test_unused_rows_are_removed(store: SnapshotRepository) -> None:
    await store.add(KEY, 1, b"", T)
    await store.save_mounts([mount(key=OTHER_KEY, read_at=T)], T + 60)
    assert await store.remove_unused(T, T + 60) == 0
    assert await store.find_newest(KEY)
    assert await store.find_mount(READER)
    assert await store.remove_unused(T + 1, T + 60) == 1
    assert await store.find_newest(KEY) is None
    assert await store.load(KEY, 1) is None
    assert await store.find_mount(READER) is None
    assert await store.add(KEY, 1, b"anew", T + 2)
    assert await store.load(KEY, 1) == b"anew"


@ensure_deferred
async def test_validated_or_read_snapshots_are_in_use(store: SnapshotRepository) -> None:
    for key in (b"validated", b"mounted", b"ended", b"unused"):
        await store.add(key, 1, b"", T)
    await store.record_validation(b"validated", 1, T + 60)
    await store.save_mounts(
        [mount(key=b"mounted", read_at=T + 60), mount(key=b"mounted", read_at=T + 1)], T + 60
    )
    await store.end(b"ended", T + 60)
    assert await store.remove_unused(T + 60, T + 60) == 1
    kept = [key for key in (b"validated", b"mounted", b"ended", b"unused") if await store.find_newest(key)]
    assert kept == [b"validated", b"mounted", b"ended"]


@ensure_deferred
async def test_number_far_above_the_newest_removes_no_generation(store: SnapshotRepository) -> None:
    """A process that could not read the newest one begins at a random number."""
    await store.add(KEY, 7, b"old", T)
    await store.add(KEY, 2**61, b"new", T + 1)
    assert await store.load(KEY, 7) == b"old"


@ensure_deferred
async def test_superseded_generations_are_removed_one_by_one(store: SnapshotRepository) -> None:
    for generation in (1, 2, 3):
        await store.add(KEY, generation, b"x", T + generation)
    assert await store.remove_unused(T + 3, T + 60) == 2
    assert [await store.load(KEY, generation) for generation in (1, 2, 3)] == [None, None, b"x"]


@ensure_deferred
async def test_newest_generation_stays_while_an_older_one_is_in_use(
    store: SnapshotRepository,
) -> None:
    """Or its number would be given again, and the older one taken for the newest."""
    for generation in (1, 2, 3):
        await store.add(KEY, generation, b"x", T)
    await store.save_mounts([mount(generation=2, read_at=T + 60)], T + 60)
    assert await store.remove_unused(T + 60, T + 60) == 1
    assert [await store.load(KEY, generation) for generation in (1, 2, 3)] == [None, b"x", b"x"]
