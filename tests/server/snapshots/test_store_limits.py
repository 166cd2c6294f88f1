"""What is removed when the store is full: how much, and in which order."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.common.database.sqlite import SqliteDatabase
from image_service.core.errors import StoreFull
from image_service.server.snapshots.storage.repository import (
    KEPT_CREDENTIALS,
    KEPT_GENERATIONS,
    Owner,
    StoredMount,
)
from image_service.server.snapshots.storage.sql_repository import FILES_BYTES, SqlRepository, StoreLimits
from image_service.server.snapshots.storage.sql_statements import (
    DATABASE_FILE,
    SCHEMA_VERSION,
    TABLES,
)
from tests.server.snapshots.outcomes import outcome, run_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024
LIMIT_BYTES = 2 * MIB
IDLE_SECONDS = 60.0
PAYLOAD_BYTES = 150_000
NOW = 1_700_000_000.0
OWNER = Owner(b"infra-env", b"credentials")


@attrs.define(eq=False)
class Store:
    """A repository with limits, and a clock that each call moves by a second."""

    directory: Path
    limit_bytes: int = LIMIT_BYTES
    now: float = NOW
    repository: SqlRepository = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        path = self.directory / DATABASE_FILE
        database = SqliteDatabase(path, TABLES, SCHEMA_VERSION)
        limits = StoreLimits(self.limit_bytes, IDLE_SECONDS)
        self.repository = SqlRepository(database, run_now, run_now, limits, lambda: self.now)

    def add(
        self,
        name: str,
        generation: int | None = None,
        size: int = PAYLOAD_BYTES,
        owner: Owner | None = None,
    ) -> None:
        self.now += 1
        key = name.encode()
        if generation is None:
            newest = outcome(self.repository.find_newest(key))
            generation = 1 + newest.generation if newest else 1
        assert outcome(self.repository.add(key, generation, bytes(size), self.now, owner))

    def read(self, name: str, generation: int = 1, reader: bytes = b"") -> None:
        self.now += 1
        mount = StoredMount(reader or name.encode(), name.encode(), generation, "5f" * 32, self.now)
        outcome(self.repository.save_mounts([mount], self.now))

    def validate(self, name: str, generation: int = 1) -> None:
        self.now += 1
        outcome(self.repository.record_validation(name.encode(), generation, self.now))

    def names(self) -> list[str]:
        """The keys and generations that are stored."""
        with closing(sqlite3.connect(self.directory / DATABASE_FILE)) as database:
            rows = database.execute("SELECT key, generation FROM snapshots ORDER BY key, generation")
            return [f"{key.decode()}{generation}" for key, generation in rows]

    @property
    def size(self) -> int:
        """Of all files together."""
        return sum(file.stat().st_size for file in self.directory.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    outcome(store.repository.close())


def fill(store: Store, *names: str, owner: Owner | None = None) -> None:
    """Add so many that none has to be removed, but for one more."""
    assert len(names) == 6
    for name in names:
        store.add(name, owner=owner)
    assert len(store.names()) == len(names)


def test_least_recently_used_goes_first(store: Store) -> None:
    fill(store, *"abcdef")
    store.validate("a")
    store.add("g")
    assert store.names() == ["a1", "c1", "d1", "e1", "f1", "g1"]
    store.add("h")
    assert store.names() == ["a1", "d1", "e1", "f1", "g1", "h1"]


def test_mounts_in_progress_go_last_by_their_last_read(store: Store) -> None:
    fill(store, *"abcdef")
    for name in "acb":
        store.read(name)
    for name in "def":
        store.validate(name)
    for name in "ghijk":
        store.add(name)
    # d, e, f have gone as idle ones, and then g and h, which are as idle.
    assert [name[0] for name in store.names()] == ["a", "b", "c", "i", "j", "k"]
    for name in "ijk":
        store.read(name, int(next(each[1:] for each in store.names() if each[0] == name)))
    for name in "lm":
        store.add(name, 9)
        store.read(name, 9)
    assert [name[0] for name in store.names()] == ["b", "i", "j", "k", "l", "m"]


def test_mount_that_is_over_protects_nothing(store: Store) -> None:
    fill(store, *"abcdef")
    store.read("a")
    for name in "bcdef":
        store.validate(name)
    store.now += IDLE_SECONDS + 1
    store.add("g")
    assert store.names() == ["b1", "c1", "d1", "e1", "f1", "g1"]
    assert outcome(store.repository.find_mount(b"a")) is None


def test_mount_in_progress_stays_when_its_snapshot_goes(store: Store) -> None:
    """Or its reader would be given another image after a restart."""
    fill(store, *"abcdef")
    for name in "abcdef":
        store.read(name)
    store.add("g")
    assert "a1" not in store.names()
    assert outcome(store.repository.find_mount(b"a")) is not None


def test_newest_generation_stays_while_an_older_one_does(store: Store) -> None:
    for generation in (1, 2, 3):
        store.add("a", generation)
    store.read("a", 1)
    for name in "bcdef":
        store.add(name)
    assert [name for name in store.names() if name[0] == "a"] == ["a1", "a3"]


def test_payload_larger_than_the_limit_is_refused(store: Store) -> None:
    fill(store, *"abcdef")
    with pytest.raises(StoreFull):
        outcome(store.repository.add(b"large", 1, bytes(LIMIT_BYTES), store.now))
    assert len(store.names()) == 6


@pytest.mark.parametrize("mebibytes", [1, 2, 12, 32])
def test_largest_payload_fits_and_a_larger_one_removes_nothing(tmp_path: Path, mebibytes: int) -> None:
    limits = StoreLimits(mebibytes * MIB, IDLE_SECONDS)
    store = Store(tmp_path, limits.max_bytes)
    store.add("small ")
    with pytest.raises(StoreFull):
        store.add("too large ", size=limits.payload_bytes + 1)
    assert store.names() == ["small 1"]
    store.add("largest ", size=limits.payload_bytes)
    assert "largest 1" in store.names()
    outcome(store.repository.close())


def test_large_payload_takes_the_room_of_many_small_ones(tmp_path: Path) -> None:
    store = Store(tmp_path, 32 * MIB)
    for number in range(600):
        store.add(f"small{number} ", size=40_000)
    largest = StoreLimits(32 * MIB, IDLE_SECONDS).payload_bytes
    store.add("large ", size=largest)
    assert store.names()[0].startswith("large ")
    assert store.size < 1.1 * 32 * MIB + 8 * MIB
    outcome(store.repository.close())


def test_lower_limit_is_applied_to_what_is_stored(tmp_path: Path) -> None:
    store = Store(tmp_path, 64 * MIB)
    for number in range(200):
        store.add(f"{number} ")
    outcome(store.repository.close())
    lower = Store(tmp_path, LIMIT_BYTES, store.now)
    assert outcome(lower.repository.remove_unused(NOW, lower.now)) == 0
    outcome(lower.repository.close())
    assert lower.size <= LIMIT_BYTES
    assert lower.names() == [f"{number} 1" for number in range(200 - len(lower.names()), 200)]


def test_number_of_credentials_of_an_infra_env_is_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path, 64 * MIB)
    owners = [Owner(b"infra-env", b"%d" % number) for number in range(KEPT_CREDENTIALS + 3)]
    for number, owner in enumerate(owners[:KEPT_CREDENTIALS]):
        for kind in ("full", "pxe"):
            store.add(f"{kind}-{number:02} ", size=10, owner=owner)
    store.add("other ", size=10, owner=Owner(b"another infra-env", b"0"))
    store.validate("pxe-00 ")
    store.read("full-02 ")
    for number, owner in enumerate(owners[KEPT_CREDENTIALS:]):
        store.add(f"new-{number} ", size=10, owner=owner)
    removed = {f"{kind}-{number:02} 1" for kind in ("full", "pxe") for number in (1, 3, 4)}
    stored = set(store.names())
    assert not removed & stored
    assert len(stored) == 2 * KEPT_CREDENTIALS + 1 + 3 - len(removed)
    outcome(store.repository.close())


def test_mounts_alone_do_not_exceed_the_limit(store: Store) -> None:
    for batch in range(200):
        readers = [b"%032d" % number for number in range(batch * 100, batch * 100 + 100)]
        mounts = [StoredMount(reader, b"a", 1, "5f" * 32, store.now + batch / 1000) for reader in readers]
        outcome(store.repository.save_mounts(mounts, store.now + 1))
    assert store.size <= LIMIT_BYTES + FILES_BYTES
    assert outcome(store.repository.find_mount(b"%032d" % 0)) is None
    assert outcome(store.repository.find_mount(b"%032d" % 19_999)) is not None


@attrs.define(eq=False)
class Oracle:
    """Which snapshots are removed, by the text of the requirement."""

    now: float
    used: dict[tuple[str, int], float] = attrs.field(factory=dict)
    read: dict[tuple[str, int], float] = attrs.field(factory=dict)

    def next_to_go(self) -> tuple[str, int]:
        def may_go(name: str, generation: int) -> bool:
            generations = [other for key, other in self.used if key == name]
            return generation < max(generations) or len(generations) == 1

        removable = [each for each in self.used if may_go(*each)]
        idle = [each for each in removable if self.read.get(each, 0.0) < self.now - IDLE_SECONDS]
        if idle:
            return min(idle, key=lambda each: self.used[each])
        return min(removable, key=lambda each: self.read.get(each, 0.0))


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "read", "validate", "wait"]), st.sampled_from("abcdefgh")),
    min_size=15,
    max_size=60,
)


@settings(max_examples=settings().max_examples // 3)
@given(steps=STEPS)
def test_order_and_size_after_any_sequence(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    oracle = Oracle(store.now)
    for step, name in steps:
        newest = max((generation for key, generation in oracle.used if key == name), default=None)
        if step == "wait":
            store.now += IDLE_SECONDS / 2
        elif step == "add":
            store.add(name)
            stored = {(each[0], int(each[1:])) for each in store.names()}
            (added,) = stored - oracle.used.keys()
            oracle.now = store.now
            gone = oracle.used.keys() - stored - {(added[0], added[1] - KEPT_GENERATIONS)}
            for _ in range(len(gone)):
                victim = oracle.next_to_go()
                assert victim in gone
                del oracle.used[victim]
            oracle.used.pop((added[0], added[1] - KEPT_GENERATIONS), None)
            oracle.used[added] = store.now
        elif newest is not None and step == "read":
            store.read(name, newest)
            oracle.used[name, newest] = oracle.read[name, newest] = store.now
        elif newest is not None:
            store.validate(name, newest)
            oracle.used[name, newest] = store.now
        assert store.size <= LIMIT_BYTES + FILES_BYTES
    outcome(store.repository.close())
    assert store.size <= LIMIT_BYTES


def test_random_sizes_stay_within_the_limit(tmp_path: Path) -> None:
    limit = 24 * MIB
    store = Store(tmp_path, limit)
    largest = 0
    for number in range(400):
        store.add(f"{number} ", size=int.from_bytes(os.urandom(3)) % 500_000)
        largest = max(largest, store.size)
    assert largest <= limit
    outcome(store.repository.close())
