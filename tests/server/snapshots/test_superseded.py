"""Base images that are not found any more: who reads them goes on, and then nothing holds them."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from copy import copy
from typing import TYPE_CHECKING, TypeVar, cast

import attrs
import pytest
from twisted.internet.task import deferLater

from image_service.common.concurrency.circuit_breaker import TIMEOUT_SECONDS, CircuitBreaker
from image_service.common.database.sqlite import SqliteDatabase
from image_service.core.errors import Unavailable, UnknownBaseImage, Unprocessable
from image_service.server.snapshots.retention import ANNOUNCED_SECONDS
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE, SCHEMA_VERSION, TABLES
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.images.building import base_image
from tests.server.snapshots.doubles import FULL, REF, VERSION, WINDOW_SECONDS, World, infra_env_of
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import (
    OPEN_REF,
    Client,
    bytes_of,
    etag_of,
    restart,
    use_faulty_repository,
)
from tests.server.snapshots.outcomes import outcome
from tests.server.snapshots.repositories import postgresql_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twisted.internet.defer import Deferred
    from twisted.internet.task import Clock

    from image_service.common.database.database import Database
    from image_service.core.base_file import BaseFile
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.reference import ImageRef
    from tests.server.snapshots.memory import MemoryRepository

T = TypeVar("T")

KEY = (VERSION, "x86_64", FULL)
MOMENT = 0.01
CLIENTS = 400
WORK_SECONDS = TIMEOUT_SECONDS / 100
"""A thread does too little in time for all clients, one by one."""


@attrs.define
class Superseding:
    """A world whose base image another takes the place of."""

    world: World
    open_files: ExitStack

    def put(self, content: bytes) -> weakref.ref[BaseFile]:
        """Let the catalog find another base image from now on."""
        before: BaseImage | None = self.world.catalog.images.get(KEY)
        base = self.open_files.enter_context(
            base_image(build_live_iso({**live_files(), "coreos/x": content}))
        )
        self.world.catalog.images[KEY] = attrs.evolve(base, file=copy(base.file))  # ours alone
        if before is not None:
            self.world.catalog.superseded.append(before)
            self.world.images.retention.supersede(before)
        return weakref.ref(self.world.catalog.images[KEY].file)

    def restart(self) -> None:
        """Continue with another process, which opens the superseded base images again."""
        restart(self.world)
        self.world.images.retention.bases = self.world.catalog
        for base in self.world.catalog.superseded:
            self.world.images.retention.supersede(base)

    def pass_time(self, seconds: float) -> None:
        """Let time go by, and do what is done regularly."""
        self.world.clock.advance(seconds)
        self.world.images.mounts.unsaved()
        outcome(self.world.images.retention.release_superseded())
        gc.collect()


@pytest.fixture
def superseding() -> Iterator[Superseding]:
    with ExitStack() as open_files:
        world = open_files.enter_context(make_world())
        world.images.retention.bases = world.catalog
        yield Superseding(world, open_files)


def test_mount_in_progress_continues_with_the_old_base(superseding: Superseding) -> None:
    client = Client(superseding.world)
    superseding.put(b"old")
    first = bytes_of(client.range())
    superseding.put(b"new")
    for _ in range(10):
        superseding.pass_time(WINDOW_SECONDS - MOMENT)
        assert bytes_of(client.range()) == first
    assert bytes_of(client.head()) != first


@pytest.mark.parametrize("ref", [REF, OPEN_REF])
def test_mount_continues_with_the_old_base_after_a_restart(superseding: Superseding, ref: ImageRef) -> None:
    world = superseding.world
    world.assisted.reported = infra_env_of(version=VERSION, kind=FULL)
    superseding.put(b"old")
    first = bytes_of(Client(world, ref=ref).range())
    superseding.put(b"new")
    superseding.restart()
    assert bytes_of(Client(world, ref=ref).range()) == first
    superseding.pass_time(2 * WINDOW_SECONDS)
    assert bytes_of(Client(world, ref=ref).range()) != first


def test_mount_continues_though_its_version_is_not_configured_any_more(superseding: Superseding) -> None:
    world, client = superseding.world, Client(superseding.world)
    superseding.put(b"old")
    first = bytes_of(client.range())
    world.catalog.superseded.append(world.catalog.images.pop(KEY))
    superseding.restart()
    assert bytes_of(client.range()) == first
    newcomer = Client(world, address="192.0.2.2")
    assert isinstance(newcomer.ask().error, UnknownBaseImage)


def test_mount_whose_base_is_nowhere_is_refused_until_it_starts_over(superseding: Superseding) -> None:
    """As at a replica that never had it."""
    world, client = superseding.world, Client(superseding.world)
    superseding.put(b"old")
    first = bytes_of(client.range())
    superseding.put(b"new")
    world.catalog.superseded.clear()
    restart(world)
    assert isinstance(client.ask().error, VersionLost)
    from_start = ImageRequest(client.reader, ReadMode.RESUME, starts_over=True)
    assert bytes_of(client.ask(from_start).composed) != first
    assert bytes_of(client.range()) != first


@pytest.mark.parametrize("method", ["find_mount", "load"])
@pytest.mark.parametrize("is_open", [True, False])
def test_mount_is_refused_while_it_cannot_be_read_from_the_store(
    superseding: Superseding, method: str, *, is_open: bool
) -> None:
    """Else a client in the middle of the old base image would get bytes of the new one."""
    world, client = superseding.world, Client(superseding.world)
    store = use_faulty_repository(world)
    superseding.put(b"old")
    first = bytes_of(client.range())
    superseding.put(b"new")
    superseded = world.catalog.superseded
    world.catalog.superseded, world.catalog.is_opening = superseded if is_open else [], not is_open
    superseding.restart()
    store.broken = {method}
    assert isinstance(client.ask().error, Unavailable)
    at_start = ImageRequest(client.reader, ReadMode.RESUME, starts_over=True)
    assert isinstance(client.ask(at_start).error, Unavailable), "it may be reading on"
    store.broken.clear()
    world.catalog.superseded = superseded
    world.clock.advance(2)
    assert bytes_of(client.ask(at_start).composed) == first


def test_newcomer_is_served_without_a_store_once_no_unknown_mount_can_be_left(
    superseding: Superseding,
) -> None:
    world = superseding.world
    store = use_faulty_repository(world)
    superseding.put(b"old")
    first = bytes_of(Client(world).range())
    superseding.put(b"new")
    superseding.restart()
    store.broken = {"find_mount"}
    newcomer = Client(world, address="192.0.2.2")
    from_start = ImageRequest(newcomer.reader, ReadMode.RESUME, starts_over=True)
    world.clock.advance(WINDOW_SECONDS)
    assert isinstance(newcomer.ask(from_start).error, Unavailable), "it may be reading on, too"
    world.clock.advance(MOMENT)
    assert bytes_of(newcomer.ask(from_start).composed) != first


class BusyThread:
    """A thread that has its result a while after it has begun."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle_at = 0.0

    def __call__(self, work: Callable[[], T], /) -> Deferred[T]:
        self._idle_at = max(self._idle_at, self._clock.seconds()) + WORK_SECONDS
        return deferLater(self._clock, self._idle_at - self._clock.seconds(), work)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "postgresql":
        return postgresql_database(request.getfixturevalue("postgres").create_database())
    return SqliteDatabase(tmp_path / DATABASE_FILE, TABLES, SCHEMA_VERSION)


def test_all_mounts_continue_when_all_clients_come_back_at_once(
    superseding: Superseding, database: Database
) -> None:
    """They read the beginning of the image again, which newcomers do, too."""
    world = superseding.world

    def in_busy_thread() -> CircuitBreaker:
        return CircuitBreaker(BusyThread(world.clock), world.clock)

    def all_read() -> list[bytes]:
        asked = [
            client.ask(ImageRequest(client.reader, ReadMode.RESUME, starts_over=True)) for client in clients
        ]
        while not all(each.is_over for each in asked):
            world.clock.advance(WORK_SECONDS)
        world.clock.advance(TIMEOUT_SECONDS)  # until the mounts are stored
        return [bytes_of(each.composed) for each in asked]

    store = SqlRepository(
        database,
        in_busy_thread(),
        in_busy_thread(),
        StoreLimits(1024**3, WINDOW_SECONDS),
        world.get_wall_time,
    )
    world.store = cast("MemoryRepository", store)
    clients = [Client(world, address=f"192.0.{number // 250}.{number % 250}") for number in range(CLIENTS)]
    superseding.restart()
    superseding.put(b"old")
    first = all_read()
    superseding.put(b"new")
    superseding.restart()
    assert all_read() == first
    database.close()


def test_base_is_kept_while_a_stored_mount_names_it(superseding: Superseding) -> None:
    """Such as one of a reader that goes on at another replica."""
    world, client = superseding.world, Client(superseding.world)
    old = superseding.put(b"old")
    client.range()
    superseding.put(b"new")
    here = world.images
    for _ in range(3):
        world.images = here
        superseding.pass_time(WINDOW_SECONDS - MOMENT)
        world.images = world.make_images()  # the other replica
        client.range()
        outcome(world.images.mounts.save())
    assert here.mounts.find(client.reader) is None
    assert list(world.catalog.mounts.values()) == [1]
    assert old() is not None
    world.images = here
    superseding.pass_time(2 * WINDOW_SECONDS)
    assert not world.catalog.superseded


def test_etag_of_the_old_base_is_retained_for_a_window(superseding: Superseding) -> None:
    client = Client(superseding.world)
    superseding.put(b"old")
    etag = etag_of(client.head())
    superseding.put(b"new")
    superseding.pass_time(WINDOW_SECONDS - MOMENT)
    assert etag_of(client.named(etag)) == etag
    superseding.pass_time(2 * WINDOW_SECONDS)
    assert etag_of(client.named(etag)) != etag


def test_first_range_is_of_the_version_that_a_head_has_just_described(superseding: Superseding) -> None:
    """The client knows the size, and an ISO of another size would not be read to its end."""
    world, client = superseding.world, Client(superseding.world)
    superseding.put(b"old")
    described = bytes_of(client.head())
    late = Client(world, address="192.0.2.2")
    late.head()
    superseding.put(b"new")
    assert bytes_of(Client(world, address="192.0.2.3").range()) != described
    world.clock.advance(ANNOUNCED_SECONDS)
    assert bytes_of(client.range()) == described
    world.clock.advance(MOMENT)
    assert bytes_of(late.range()) != described
    assert bytes_of(client.range()) == described


def test_nothing_references_the_old_base_in_the_end(superseding: Superseding) -> None:
    world, client = superseding.world, Client(superseding.world)
    old = superseding.put(b"old")
    client.range()
    client.whole()
    client.head()
    superseding.put(b"new")
    for _ in range(3):
        superseding.pass_time(WINDOW_SECONDS - MOMENT)
        client.range()
    assert old() is not None
    superseding.pass_time(2 * WINDOW_SECONDS)
    superseding.pass_time(MOMENT)
    assert old() is None
    held = world.images.cache.held_bytes
    client.whole()
    assert world.images.cache.held_bytes > held


def test_cached_refusal_does_not_reference_the_old_base(superseding: Superseding) -> None:
    world, client = superseding.world, Client(superseding.world)
    old = superseding.put(b"old")
    world.assisted.reported = infra_env_of(["two\nlines"])
    assert isinstance(client.ask().error, Unprocessable)
    superseding.put(b"new")
    superseding.pass_time(2 * WINDOW_SECONDS)
    assert old() is None


def test_base_of_the_same_bytes_replaces_the_old_one_at_once(superseding: Superseding) -> None:
    """Such as one that was fetched again because the other had rotted."""
    client = Client(superseding.world)
    superseding.put(b"same")
    before = client.range()
    again = superseding.put(b"same")
    after = client.head()
    assert etag_of(after) == etag_of(before)
    assert after.version.base.file is again()


def test_withdrawn_base_is_released_though_a_stored_mount_names_its_digest(superseding: Superseding) -> None:
    world, client = superseding.world, Client(superseding.world)
    withdrawn = superseding.put(b"same")
    client.range()
    superseding.put(b"same")
    world.catalog.superseded.clear()  # as the catalog, which keeps no file that differs from its digest
    world.images.retention.bases = world.catalog
    here = world.images
    for _ in range(3):
        world.images = here
        superseding.pass_time(WINDOW_SECONDS - MOMENT)
        world.images = world.make_images()  # the other replica
        client.range()
        outcome(world.images.mounts.save())
    assert list(world.catalog.mounts.values()) == [1]
    gc.collect()
    assert withdrawn() is None
