"""Several processes serve one reader in turn: it gets one version from all of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from twisted.internet.defer import Deferred

from image_service.common.concurrency.coordination import SIZE_BYTES, SharedMemoryCoordination
from image_service.core.errors import Forbidden, NotFound, Unavailable, UpstreamTimeout
from image_service.core.images.reference import ImageRef, Kind
from image_service.server.snapshots.image_builder import THREAD_BYTES
from image_service.server.snapshots.image_finder import ANSWER_SECONDS, TIMEOUT_SECONDS
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.server.snapshots.doubles import (
    DISCONNECTED,
    FULL,
    ID,
    TTL_SECONDS,
    VERSION,
    WINDOW_SECONDS,
    ManualThreads,
    World,
    infra_env_of,
)
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import Client, PendingRequest, bytes_of, etag_of, say
from tests.server.snapshots.outcomes import outcome
from tests.server.snapshots.pinning import FaultyRepository

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.images.reference import Reader
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.snapshots.storage.sql_repository import SqlRepository
    from image_service.server.snapshots.versions import ComposedVersion
    from tests.server.snapshots.conftest import Coordinating
    from tests.server.snapshots.memory import MemoryRepository

MOMENT = 0.01
READER = Client(cast("World", None)).reader


def coordination_in(world: World, directory: Path) -> SharedMemoryCoordination:
    return SharedMemoryCoordination(memoryview(bytearray(SIZE_BYTES)), directory / "locks", world.clock)


def sharing(world: World, coordinations: Sequence[Coordination]) -> list[ImageFinder]:
    """Processes of a world."""
    return [world.make_images(coordination=coordination) for coordination in coordinations]


@pytest.fixture
def store(world: World, repository: SqlRepository) -> FaultyRepository:
    store = FaultyRepository(repository)
    world.store = cast("MemoryRepository", store)
    return store


@pytest.fixture
def coordinating(world: World, coordinate: Callable[[IReactorTime], Coordinating]) -> Coordinating:
    return coordinate(world.clock)


@pytest.fixture
def coordination(coordinating: Coordinating) -> Coordination:
    return coordinating.processes[0]


@pytest.fixture
def processes(world: World, store: FaultyRepository, coordinating: Coordinating) -> list[ImageFinder]:
    assert store is cast("object", world.store)
    return sharing(world, coordinating.processes)


def ask(images: ImageFinder, reading: ReadMode, *etags: str, reader: Reader = READER) -> PendingRequest:
    return PendingRequest(images, ImageRequest(reader, reading, etags), moves=True)


def part(images: ImageFinder) -> ComposedVersion:
    """A range without a validator."""
    return ask(images, ReadMode.RESUME).composed


def whole(images: ImageFinder) -> ComposedVersion:
    return ask(images, ReadMode.NEWEST).composed


def change(world: World, processes: list[ImageFinder]) -> None:
    """Have the newest version be another, in all processes."""
    world.clock.advance(TTL_SECONDS - 1)
    for images in processes:
        part(images)
    world.clock.advance(1)
    say(world, "changed")
    other = attrs.evolve(READER, address="192.0.2.9")
    ask(processes[-1], ReadMode.NEWEST, reader=other)


def test_mount_is_the_same_in_all_processes_from_its_first_range(
    world: World, processes: list[ImageFinder]
) -> None:
    first = bytes_of(part(processes[0]))
    change(world, processes)
    for images in processes * 2:
        assert bytes_of(part(images)) == first
    assert world.assisted.asked.count("ignition") == 2


def test_further_range_of_a_known_mount_reads_no_repository(
    processes: list[ImageFinder], store: FaultyRepository
) -> None:
    for images in processes:
        part(images)
    store.called.clear()
    for images in processes:
        asked = ask(images, ReadMode.RESUME)
        assert asked.was_cached
        assert asked.succeeded
    assert not store.called


def test_whole_get_moves_a_mount_in_all_processes(world: World, processes: list[ImageFinder]) -> None:
    old = bytes_of(part(processes[0]))
    change(world, processes)
    assert {bytes_of(part(images)) for images in processes} == {old}
    new = bytes_of(whole(processes[1]))
    assert new != old
    assert {bytes_of(part(images)) for images in processes} == {new}


def test_mount_of_a_short_url_is_the_same_in_all_processes(
    world: World, processes: list[ImageFinder]
) -> None:
    """Its infra-env is edited in the midst of it, and the others have never heard of what it was before."""
    reader = attrs.evolve(READER, ref=ImageRef(ID, None, None, None))
    world.assisted.reported = infra_env_of((), VERSION, FULL)
    first = bytes_of(ask(processes[0], ReadMode.RESUME, reader=reader).composed)
    world.assisted.reported = infra_env_of((), VERSION, DISCONNECTED)
    for images in processes * 2:
        assert bytes_of(ask(images, ReadMode.RESUME, reader=reader).composed) == first


def test_short_url_is_resolved_once_for_all_processes(world: World, processes: list[ImageFinder]) -> None:
    reader = attrs.evolve(READER, ref=ImageRef(ID, None, None, Kind.PXE_INITRD))
    for version, architecture in enumerate(("x86_64", "aarch64", "aarch64"), 1):
        world.assisted.reported = infra_env_of((), VERSION, None, architecture)
        world.clock.advance(TTL_SECONDS / 2)
        for images in processes * 2:
            composed = ask(images, ReadMode.NEWEST, reader=reader).composed
            assert composed.version.base.architecture == architecture
            world.clock.advance(TTL_SECONDS / 12 - MOMENT)
        world.clock.advance(1)
        assert world.assisted.asked.count("infra-env") == version


def test_range_with_an_etag_moves_a_mount_in_all_processes(
    world: World, processes: list[ImageFinder]
) -> None:
    old = part(processes[0])
    change(world, processes)
    assert bytes_of(whole(processes[0])) != bytes_of(old)
    assert ask(processes[0], ReadMode.NAMED, etag_of(old)).composed == old
    assert {bytes_of(part(images)) for images in processes} == {bytes_of(old)}


def test_superseded_mount_is_not_saved_over_the_newer_one(world: World, processes: list[ImageFinder]) -> None:
    """A process still sends of the older version while another has begun the newer one."""
    one, other, third = processes
    mount = one.record_mount(ImageRequest(READER, ReadMode.RESUME), part(one))
    change(world, processes)
    new = bytes_of(whole(other))
    for _ in range(3):
        world.clock.advance(one.mounts.save_seconds)
        Deferred.fromCoroutine(one.mounts.save())
        assert bytes_of(part(third)) == new
    one.mounts.end_response(mount)
    assert bytes_of(part(one)) == new


def test_first_stored_of_two_concurrent_mounts_wins(
    world: World, processes: list[ImageFinder], store: FaultyRepository
) -> None:
    """Two connections' first ranges, one of them just before a change and the other just after it."""
    one, other, third = processes
    world.assisted.held = []
    asked = [ask(one, ReadMode.RESUME)]
    say(world, "changed")
    asked.append(ask(other, ReadMode.RESUME))
    world.assisted.release()
    world.clock.advance(1)
    assert len({bytes_of(one.composed) for one in asked} | {bytes_of(part(third))}) == 1
    assert store.called["save_mounts"]


def test_slow_process_serves_the_version_that_another_has_started(
    world: World, processes: list[ImageFinder], coordination: Coordination
) -> None:
    threads = ManualThreads()
    slow, other = world.make_images(threads.run, coordination), processes[1]
    say(world, "x" * THREAD_BYTES)
    ask(processes[2], ReadMode.NEWEST, reader=attrs.evolve(READER, address="192.0.2.2"))
    world.clock.advance(TTL_SECONDS - 1)
    asked = ask(slow, ReadMode.RESUME)
    world.clock.advance(1)
    say(world, "changed")
    begun = bytes_of(part(other))
    assert threads.waiting
    threads.work()
    assert bytes_of(asked.composed) == begun
    assert {bytes_of(part(images)) for images in (slow, *processes)} == {begun}


def test_mount_read_during_a_write_is_read_again(
    world: World, processes: list[ImageFinder], store: FaultyRepository, coordination: Coordination
) -> None:
    world.store = cast("MemoryRepository", FaultyRepository(store.store))
    slow = world.make_images(coordination=coordination)
    old = bytes_of(part(processes[0]))
    change(world, processes)
    new = bytes_of(ask(slow, ReadMode.NEWEST, reader=attrs.evolve(READER, address="192.0.2.2")).composed)
    gate: Deferred[None] = Deferred()
    cast("FaultyRepository", world.store).gate = gate
    assert bytes_of(whole(slow)) == new
    for images in processes:
        assert bytes_of(part(images)) == old
    gate.callback(None)
    for images in (*processes, slow):
        assert bytes_of(part(images)) == new


def test_mount_that_was_not_saved_gives_way_to_the_one_that_another_process_has_saved(
    world: World, processes: list[ImageFinder], store: FaultyRepository
) -> None:
    old = bytes_of(part(processes[1]))
    change(world, processes)
    store.broken = {"save_mounts", "find_mount"}
    assert bytes_of(whole(processes[0])) != old
    store.broken = set()
    for images in (processes[1], processes[0], processes[1]):
        assert bytes_of(part(images)) == old


def test_response_waits_until_other_processes_can_see_its_mount(
    processes: list[ImageFinder], store: FaultyRepository
) -> None:
    images = processes[0]
    whole(images)
    store.gate = Deferred()
    reader = attrs.evolve(READER, address="192.0.2.2")
    want = ImageRequest(reader)
    composed = images.get_cached_image(want)
    assert composed is not None
    saving = images.record_mount(want, composed).saving
    assert saving is not None
    asked = ask(images, ReadMode.RESUME, reader=attrs.evolve(READER, address="192.0.2.3"))
    assert not asked.is_over
    assert [saving.called] == [False]
    store.gate.callback(None)
    assert saving.called
    assert asked.succeeded


def test_response_whose_mount_is_not_stored_in_time_is_refused(
    world: World, processes: list[ImageFinder], store: FaultyRepository
) -> None:
    images = processes[0]
    whole(images)
    store.gate = Deferred()
    want = ImageRequest(attrs.evolve(READER, address="192.0.2.2"))
    composed = images.get_cached_image(want)
    assert composed is not None
    deadline = images.deadline()
    mount = images.record_mount(want, composed)
    saved = images.until_saved(mount, deadline)
    assert saved is not None
    refusals: list[Failure] = []
    saved.addErrback(refusals.append)
    world.clock.advance(ANSWER_SECONDS)
    assert [refusal.type for refusal in refusals] == [Unavailable]
    assert mount.responses == 0
    store.gate.callback(None)
    assert images.until_saved(mount, images.deadline()) is None


def test_single_process_does_not_wait_for_the_repository(world: World, store: FaultyRepository) -> None:
    images = world.make_images()
    whole(images)
    store.gate = Deferred()
    want = ImageRequest(attrs.evolve(READER, address="192.0.2.2"))
    composed = images.get_cached_image(want)
    assert composed is not None
    assert images.record_mount(want, composed).saving is None
    store.gate.callback(None)


@pytest.mark.parametrize("broken", [{"save_mounts"}, {"find_mount"}, {"save_mounts", "find_mount"}])
def test_failing_repository_loses_only_the_coordination(
    world: World,
    processes: list[ImageFinder],
    store: FaultyRepository,
    coordinating: Coordinating,
    broken: set[str],
) -> None:
    store.broken = broken
    first = bytes_of(part(processes[0]))
    change(world, processes[:1])
    for memory in coordinating.memories:
        memory.bump_all()
    assert bytes_of(part(processes[0])) == first


def test_mount_that_began_while_the_repository_failed_goes_on_in_each_process(
    processes: list[ImageFinder], store: FaultyRepository
) -> None:
    store.broken = {"add", "save_mounts", "find_mount"}
    first = [bytes_of(part(images)) for images in processes]
    store.broken = {"add"}  # the mounts are stored, their snapshots are not yet
    for images in processes:
        outcome(images.mounts.save())
    assert [bytes_of(part(images)) for images in processes] == first


def test_pausing_mount_stays_in_progress_in_all_processes(world: World, processes: list[ImageFinder]) -> None:
    """Its last range came a moment ago to another process, which would note that only later."""
    one, other, _ = processes
    first = bytes_of(part(one))
    change(world, processes)
    for _ in range(2):
        assert bytes_of(part(one)) == first
        world.clock.advance(WINDOW_SECONDS - MOMENT)
    assert bytes_of(part(other)) == first
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert bytes_of(part(one)) != first


@pytest.mark.parametrize("changes", [False, True])
def test_refusal_stops_mounts_in_all_processes_until_the_same_answer(
    world: World, processes: list[ImageFinder], *, changes: bool
) -> None:
    first = [part(images) for images in processes]
    world.clock.advance(TTL_SECONDS - 1)
    for images in processes:
        part(images)
    world.clock.advance(1)
    world.assisted.failures = {"ignition": Forbidden("403")}
    for images in processes:
        assert isinstance(ask(images, ReadMode.RESUME).error, Forbidden)
    world.assisted.failures = {}
    say(world, "changed" if changes else "")
    world.clock.advance(RETRY_SECONDS)
    for images, before in zip(processes, first, strict=True):
        asked = ask(images, ReadMode.RESUME)
        if changes:
            assert isinstance(asked.error, VersionLost)
        else:
            assert bytes_of(asked.composed) == bytes_of(before)


@pytest.mark.parametrize("reading", [ReadMode.NEWEST, ReadMode.RESUME])
def test_reader_whose_version_is_lost_starts_over_in_any_process(
    world: World, processes: list[ImageFinder], reading: ReadMode
) -> None:
    one, *others = processes
    first = part(one)
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures = {"ignition": Forbidden("403")}
    assert isinstance(ask(one, ReadMode.RESUME).error, Forbidden)
    world.assisted.failures = {}
    say(world, "changed")
    for images in others:
        assert isinstance(ask(images, ReadMode.RESUME).error, VersionLost)
    beginning = ImageRequest(READER, reading, starts_over=reading is ReadMode.RESUME)
    second = PendingRequest(others[0], beginning, moves=True).composed
    assert bytes_of(second) != bytes_of(first)
    world.clock.advance(RETRY_SECONDS)
    for images in processes:
        assert bytes_of(part(images)) == bytes_of(second)


def test_request_that_is_answered_too_late_starts_nothing_over(
    world: World, processes: list[ImageFinder]
) -> None:
    """Its client has only bytes of the lost version, and may go on reading in the middle."""
    one, other, _ = processes
    part(one)
    world.clock.advance(TTL_SECONDS - 1)
    part(one)
    Deferred.fromCoroutine(one.mounts.save())
    world.clock.advance(1)
    world.assisted.failures = {"ignition": Forbidden("403")}
    assert isinstance(ask(one, ReadMode.RESUME).error, Forbidden)
    world.assisted.failures, world.assisted.held = {}, []
    say(world, "changed")
    world.clock.advance(RETRY_SECONDS)
    beginning = ImageRequest(READER, ReadMode.RESUME, starts_over=True)
    late = PendingRequest(one, beginning, moves=True)
    world.clock.advance(TIMEOUT_SECONDS)
    assert isinstance(late.error, UpstreamTimeout)
    world.assisted.release()
    for images in (one, other):
        assert isinstance(ask(images, ReadMode.RESUME).error, VersionLost)
    assert PendingRequest(one, beginning, moves=True).succeeded


NUMBERS = st.integers(0, 2)


class Mounting(RuleBasedStateMachine):
    """Whatever happens, and whoever is asked, no mount gets bytes of two images, or any while refused."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.making = make_world()
        self.world = self.making.__enter__()
        self.coordination = coordination_in(self.world, Path(self.directory.name))
        self.processes = sharing(self.world, [self.coordination] * 3)
        self.text = ""
        self.read: dict[Reader, tuple[bytes, float]] = {}
        self.is_refused = False

    @rule(text=st.sampled_from("abc"))
    def change(self, text: str) -> None:
        self.text = text

    @rule(seconds=st.sampled_from([1.0, 9.0, 25.0, TTL_SECONDS - 1.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.save()

    @rule()
    def save(self) -> None:
        for images in self.processes:
            Deferred.fromCoroutine(images.mounts.save())

    @rule(number=NUMBERS)
    def restart(self, number: int) -> None:
        """As after ``kill -9``: to the others a mount looks over sooner, by what was not stored."""
        unsaved = self.processes[number].mounts.save_seconds
        self.read = {reader: (image, read_at - unsaved) for reader, (image, read_at) in self.read.items()}
        self.processes[number] = self.world.make_images(coordination=self.coordination)

    @rule(refuses=st.booleans())
    def refuse(self, refuses: bool) -> None:  # noqa: FBT001 - hypothesis names it
        self.world.assisted.failures = {"ignition": Forbidden("403")} if refuses else {}

    @rule(number=NUMBERS, client=st.integers(1, 2))
    def part(self, number: int, client: int) -> None:
        asked, reader = self.ask(number, client, ReadMode.RESUME)
        before, read_at = self.read.get(reader, (b"", -1000.0))
        if asked.succeeded and self.world.clock.seconds() <= read_at + WINDOW_SECONDS:
            assert bytes_of(asked.composed) == before
        self.take(reader, asked)

    @rule(number=NUMBERS, client=st.integers(1, 2))
    def whole(self, number: int, client: int) -> None:
        asked, reader = self.ask(number, client, ReadMode.NEWEST)
        self.take(reader, asked)

    def ask(self, number: int, client: int, reading: ReadMode) -> tuple[PendingRequest, Reader]:
        say(self.world, self.text)
        reader = attrs.evolve(READER, address=f"192.0.2.{client}")
        rounds = self.world.assisted.asked.count("ignition")
        asked = ask(self.processes[number], reading, reader=reader)
        assert asked.is_over
        if self.world.assisted.asked.count("ignition") > rounds:
            self.is_refused = bool(self.world.assisted.failures)
        if self.is_refused:
            assert isinstance(asked.error, Forbidden | NotFound)
        return asked, reader

    def take(self, reader: Reader, asked: PendingRequest) -> None:
        if asked.succeeded:
            self.read[reader] = bytes_of(asked.composed), self.world.clock.seconds()

    def teardown(self) -> None:
        self.making.__exit__(None, None, None)
        self.directory.cleanup()


@pytest.mark.hypothesis
def test_any_mounts_are_as_in_the_model() -> None:
    run_state_machine_as_test(Mounting, settings=settings(stateful_step_count=40))
