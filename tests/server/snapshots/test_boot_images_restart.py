"""Mounts across restarts, and without a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from image_service.common.concurrency.circuit_breaker import PAUSE_SECONDS
from image_service.core.errors import (
    Forbidden,
    ImageServiceError,
    NotFound,
    Unavailable,
    UpstreamError,
)
from image_service.server.snapshots.storage import sealed_repository
from image_service.server.snapshots.storage.sealed_repository import first_generation
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.images.building import base_image
from tests.pytwisted import ensure_deferred
from tests.server.snapshots.doubles import (
    DISCONNECTED,
    FULL,
    REF,
    TTL_SECONDS,
    VERSION,
    WINDOW_SECONDS,
    World,
    evict_everything,
    infra_env_of,
)
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.mounting import (
    MOMENT,
    OPEN_REF,
    UPSTREAM_FAILS,
    UPSTREAM_REFUSES,
    Client,
    bytes_of,
    etag_of,
    pass_ttl,
    restart,
    rounds,
    say,
    use_faulty_repository,
)
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import CREDENTIALS, REFUSING

if TYPE_CHECKING:
    from image_service.core.images.reference import (
        Kind,
    )
    from tests.conftest import LoggedFailures

# The process that follows.


def test_mount_continues_with_the_same_bytes_after_a_restart(world: World, client: Client) -> None:
    expected = bytes_of(client.range())
    restart(world)
    assert bytes_of(client.range()) == expected
    assert rounds(world) == 1
    assert client.ask().was_cached


def test_mount_of_a_superseded_generation_continues_after_a_restart(world: World, client: Client) -> None:
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    newcomer = attrs.evolve(client, address="192.0.2.2")
    second = bytes_of(newcomer.range())
    for _ in range(3):
        restart(world)
        assert bytes_of(client.range()) == first
        assert bytes_of(newcomer.range()) == second
        assert bytes_of(client.head()) == second
        assert bytes_of(client.range()) == first
        world.clock.advance(WINDOW_SECONDS - 1)
        say(world, "changed")


def test_other_requests_before_the_mount_change_nothing(world: World, client: Client) -> None:
    """They have put the newest in memory, where a range without a mount would find it."""
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    client.head()
    restart(world)
    client.head()
    attrs.evolve(client, address="192.0.2.2").range()
    assert bytes_of(client.range()) == first


def test_mount_is_stored_before_its_first_byte(world: World, client: Client) -> None:
    """Nobody but the mount itself has saved it, when the process is killed right after its first range."""
    first = bytes_of(client.range())
    restart(world)
    pass_ttl(world, "changed")
    assert bytes_of(client.range()) == first


def test_mount_does_not_continue_after_its_window(world: World, client: Client) -> None:
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    world.clock.advance(WINDOW_SECONDS - TTL_SECONDS)
    restart(world)
    assert bytes_of(client.range()) == first
    restart(world)
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert bytes_of(client.range()) != first


def test_restored_mount_keeps_its_last_read_time(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    restart(world)
    for _ in range(3):  # none of these is answered with content
        world.images.get(ImageRequest(client.reader, ReadMode.RESUME))
        world.images.get(ImageRequest(client.reader, ReadMode.NAMED, (etag_of(first),)))
    assert world.images.mounts.find(client.reader) is not None
    world.clock.advance(MOMENT)
    assert bytes_of(client.range()) != bytes_of(first)


@ensure_deferred
async def test_saved_mount_has_its_last_read_time(world: World, client: Client) -> None:
    first = client.range()
    download = world.images.record_mount(ImageRequest(client.reader), first)
    pass_ttl(world, "changed")
    world.clock.advance(10 * WINDOW_SECONDS)
    attrs.evolve(client, address="192.0.2.2").range()
    await world.images.mounts.save()
    world.clock.advance(WINDOW_SECONDS)
    restart(world)
    assert bytes_of(client.range()) == bytes_of(first)
    del download


def test_version_is_named_across_a_restart_by_its_reader(world: World, client: Client) -> None:
    first = client.range()
    date = first.representation.date
    pass_ttl(world, "changed")
    second = attrs.evolve(client, address="192.0.2.2").range()
    for etags, named_date, expected in (
        ((etag_of(first),), None, first),
        ((), date, first),
        ((etag_of(second),), None, second),
        (('"other"',), None, second),
    ):
        restart(world)
        client.head()
        assert etag_of(client.named(*etags, date=named_date)) == etag_of(expected)
        restart(world)
        # Put back, whatever the last request has moved.
        world.images.mounts.end_response(
            world.images.record_mount(ImageRequest(client.reader, ReadMode.RESUME), first)
        )


def test_credentials_stay_separate_after_a_restart(world: World) -> None:
    clients = [Client(world, credentials=credentials) for credentials in CREDENTIALS]
    images = []
    for client in clients:
        say(world)
        images.append(bytes_of(client.range()))
    assert len(set(images)) == len(clients)
    for _ in range(3):
        restart(world)
        assert [bytes_of(client.range()) for client in clients] == images
    assert rounds(world) == len(clients)


@pytest.mark.parametrize("error", REFUSING)
def test_refusal_is_raised_after_a_restart(world: World, client: Client, error: ImageServiceError) -> None:
    client.range()
    restart(world)
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures["ignition"] = error
    assert type(client.ask().error) is type(error)
    restart(world)
    assert type(client.ask().error) is type(error)


def test_mount_continues_after_a_restart_while_upstream_is_down(world: World, client: Client) -> None:
    expected = bytes_of(client.range())
    restart(world)
    world.clock.advance(WINDOW_SECONDS)
    world.assisted.failures = dict.fromkeys(("ignition", "infra-env"), UpstreamError("down"))
    assert bytes_of(client.range()) == expected
    assert bytes_of(client.whole()) == expected


def test_mount_whose_base_was_replaced_is_refused_after_a_restart(world: World, client: Client) -> None:
    """An alias has moved on: it must not get bytes of the new base in the midst of the old one."""
    first = client.range()
    with base_image(build_live_iso({**live_files(), "coreos/other": b"other"})) as other:
        world.catalog.images[VERSION, "x86_64", FULL] = other
        assert client.range() is first, "whoever reads from this process goes on"
        assert etag_of(client.head()) != etag_of(first)
        restart(world)
        for _ in range(3):
            assert isinstance(client.ask().error, NotFound)
        assert client.head().version.base is other
        assert client.named(etag_of(first)).version.base is other
        restart(world)
        world.clock.advance(WINDOW_SECONDS + MOMENT)
        assert client.range().version.base is other


@pytest.mark.parametrize(("then", "now"), [(FULL, DISCONNECTED), (DISCONNECTED, FULL)])
def test_mount_continues_after_its_infra_env_changed_kind(world: World, then: Kind, now: Kind) -> None:
    """Both kinds may be made of one base, and have snapshots of one number."""
    client = Client(world, ref=OPEN_REF)
    world.assisted.reported = infra_env_of((), VERSION, then)
    world.catalog.images[VERSION, "x86_64", DISCONNECTED] = world.catalog.images[VERSION, "x86_64", FULL]
    first = bytes_of(client.range())
    say(world, "of the other kind")
    other = Client(world, ref=attrs.evolve(REF, kind=now)).range()
    world.assisted.reported = infra_env_of((), VERSION, now)
    restart(world)
    assert bytes_of(client.range()) == first
    assert bytes_of(client.whole()) == bytes_of(other)


def test_mount_of_a_short_url_continues_after_its_version_changed(world: World) -> None:
    client = Client(world, ref=OPEN_REF)
    world.assisted.reported = infra_env_of((), VERSION)
    first = bytes_of(client.range())
    with base_image(build_live_iso({**live_files(), "coreos/other": b"other"}), version="4.21") as other:
        world.catalog.images["4.21", "x86_64", FULL] = other
        world.assisted.reported = infra_env_of((), "4.21")
        restart(world)
        world.assisted.calls.clear()
        assert bytes_of(client.range()) == first
        assert world.assisted.asked == [], "nobody needs to be asked"
        assert client.head().version.base is other
        assert bytes_of(client.range()) == first
        del world.catalog.images[VERSION, "x86_64", FULL]
        restart(world)
        assert isinstance(client.ask().error, NotFound)


def test_restored_version_is_not_composed_twice(world: World) -> None:
    """It is found by its base's build then, and by the infra-env's version by who asks anew."""
    client = Client(world, ref=OPEN_REF)
    world.assisted.reported = infra_env_of((), VERSION)
    client.range()
    restart(world)
    assert client.range() is client.head()


def test_bases_of_equal_bytes_and_two_builds_are_two_versions(world: World) -> None:
    """A minimal ISO names the build that its rootfs is of."""
    one, other = (Client(world, ref=attrs.evolve(REF, version=version)) for version in (VERSION, "4.21"))
    base = world.catalog.images[VERSION, "x86_64", FULL]
    world.catalog.images["4.21", "x86_64", FULL] = attrs.evolve(base, version="4.21")
    assert one.head().version != other.head().version


def test_processes_with_one_repository_serve_one_version_to_a_client(world: World, client: Client) -> None:
    """Whichever its connection comes to: they share the store."""
    one, other = world.images, world.make_images()
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    client.head()
    for images in (other, one, other):
        world.images = images
        assert bytes_of(client.range()) == first
    newcomer = attrs.evolve(client, address="192.0.2.2")
    assert bytes_of(newcomer.range()) != first


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["range", "whole", "head"]), st.integers(0, 2)),
            st.tuples(st.just("restart"), st.just(0)),
            st.tuples(st.just("change"), st.integers(0, 3)),
            st.tuples(st.just("wait"), st.integers(1, 50)),
            st.tuples(st.just("forget"), st.just(0)),
            st.tuples(st.just("fail"), st.integers(0, 2)),
        ),
        max_size=25,
    )
)
def test_no_mount_gets_bytes_of_two_versions(steps: list[tuple[str, int]]) -> None:
    with make_world() as world:
        say(world)
        clients = [Client(world, f"192.0.2.{number}") for number in range(2)]
        clients.append(Client(world, credentials=CREDENTIALS[1]))
        reading: dict[Client, tuple[set[bytes], float]] = {}
        refused: set[Client] = set()
        text = ""
        for step, number in steps:
            now = world.clock.seconds()
            match step:
                case "restart":
                    Deferred.fromCoroutine(world.images.mounts.save())
                    restart(world)
                case "change":
                    text = "abc"[:number]
                case "wait":
                    world.clock.advance(number)
                case "forget":
                    evict_everything(world)
                case "fail":
                    world.assisted.failures = [{}, UPSTREAM_FAILS, UPSTREAM_REFUSES][number]
                case _:
                    client = clients[number]
                    say(world, text)
                    want = (
                        ImageRequest(client.reader, ReadMode.RESUME)
                        if step == "range"
                        else ImageRequest(client.reader)
                    )
                    asked = client.ask(want, moves=step != "head")
                    expected, read_at = reading.get(client, (set(), -1000.0))
                    is_reading = step == "range" and now <= read_at + WINDOW_SECONDS
                    if not asked.succeeded:
                        is_refusal = isinstance(asked.error, Forbidden | NotFound)
                        assert is_refusal or client in refused or not is_reading
                        refused |= {other for other in clients if other.credentials == client.credentials}
                    else:
                        assert bytes_of(asked.composed) in expected or not is_reading
                        if step != "head":
                            expected, read_at = set(), now
                        is_moved = step != "head" or client in refused
                        more = {bytes_of(asked.composed)} if is_moved else set()
                        reading[client] = (expected | more, read_at)


# A store that fails.


@pytest.mark.parametrize(
    "broken",
    ["find_newest", "load", "add", "record_validation", "end", "save_mounts", "find_mount", "everything"],
)
@pytest.mark.parametrize("from_the_start", [True, False])
def test_mounts_continue_in_memory_if_the_repository_fails(
    world: World, client: Client, broken: str, *, from_the_start: bool
) -> None:
    store = use_faulty_repository(world)
    names = set(dir(MemoryRepository)) if broken == "everything" else {broken}
    store.broken = names if from_the_start else set()
    first = client.range()
    store.broken = names
    expected = bytes_of(first)
    for text in ("", "changed", "changed again"):
        pass_ttl(world, text)
        assert bytes_of(client.range()) == expected
        assert text.encode() in bytes_of(client.head())
    assert client.whole() is not first
    world.assisted.failures["ignition"] = Forbidden("no longer")
    world.clock.advance(TTL_SECONDS)
    assert isinstance(client.ask().error, Forbidden)


def test_unstored_mount_is_refused_after_a_restart(world: World, client: Client) -> None:
    """Other tokens are in what is asked for now."""
    store = use_faulty_repository(world)
    store.broken = {"add"}
    client.range()
    store.broken = set()
    restart(world)
    say(world)
    assert isinstance(client.ask().error, NotFound)
    expected = client.head()
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is expected


def test_mount_that_began_unstored_continues_after_an_orderly_restart(world: World, client: Client) -> None:
    """The store works again, but assisted-service is away, so that nothing is validated."""
    store = use_faulty_repository(world)
    store.broken = {"add"}
    first = bytes_of(client.range())
    store.broken = set()
    world.assisted.failures = UPSTREAM_FAILS
    outcome(world.images.save())
    restart(world)
    assert bytes_of(client.range()) == first
    assert rounds(world) == 1


def test_store_that_fails_at_the_end_is_tried_once_again(world: World, client: Client) -> None:
    store = use_faulty_repository(world)
    store.broken = {"add"}
    first = bytes_of(client.range())
    ended = Outcome(world.images.save_at_last())
    store.broken = set()
    world.clock.advance(PAUSE_SECONDS)
    assert ended.has_fired
    restart(world)
    say(world)
    assert bytes_of(client.range()) == first


def test_end_does_not_wait_for_a_store_that_has_nothing_to_store(world: World, client: Client) -> None:
    store = use_faulty_repository(world)
    store.broken = {"add"}
    client.range()
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert world.images.snapshots.store_failing["write"]
    assert Outcome(world.images.save_at_last()).has_fired


def test_snapshot_that_is_stored_late_does_not_supersede_the_next_one(world: World, client: Client) -> None:
    """Assisted-service gives another answer, which is stored at the same time."""
    store = use_faulty_repository(world)
    store.broken = {"add"}
    client.range()
    store.broken = set()
    pass_ttl(world, "changed")
    gate = store.gate = Deferred[None]()
    head = client.ask(ImageRequest(client.reader), moves=False)
    saving = Outcome(world.images.save())
    store.gate = None
    gate.callback(None)
    assert saving.has_fired
    changed = bytes_of(head.composed)
    restart(world)
    world.assisted.failures = UPSTREAM_FAILS
    assert bytes_of(client.head()) == changed


def test_snapshot_that_is_refused_while_it_is_stored_stays_refused(world: World, client: Client) -> None:
    store = use_faulty_repository(world)
    store.broken = {"add"}
    client.range()
    store.broken = set()
    gate = store.gate = Deferred[None]()
    saving = Outcome(world.images.save())
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures = UPSTREAM_REFUSES
    refused = client.ask()
    store.gate = None
    gate.callback(None)
    assert saving.has_fired
    assert isinstance(refused.error, Forbidden)
    world.assisted.failures = UPSTREAM_FAILS
    restart(world)
    assert not client.ask(ImageRequest(client.reader)).succeeded


@pytest.mark.parametrize("broken", [{"find_layout"}, {"load"}, {"find_newest", "find_layout", "load"}])
def test_mount_whose_snapshot_cannot_be_read_is_told_to_come_again(
    world: World, client: Client, broken: set[str]
) -> None:
    """It is not lost: a machine that got 404 would give up."""
    store = use_faulty_repository(world)
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    client.head()
    restart(world)
    store.broken = broken
    assert isinstance(client.ask().error, Unavailable)
    store.broken = set()
    assert bytes_of(client.range()) == first


def test_lost_snapshot_is_asked_for_again_by_new_mounts(world: World, client: Client) -> None:
    store = use_faulty_repository(world)
    first = client.range()
    evict_everything(world)
    store.store = MemoryRepository()
    say(world)
    second = client.head()
    assert etag_of(second) != etag_of(first)
    assert rounds(world) == 2
    assert isinstance(client.ask().error, NotFound), "not in the midst of the first"
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is second


def test_mount_that_cannot_be_saved_is_served_and_logged(
    world: World, client: Client, logged_failures: LoggedFailures
) -> None:
    store = use_faulty_repository(world)
    store.broken, store.error = {"save_mounts"}, KeyError("odd")
    assert client.range() is client.range()
    assert len(logged_failures.flush(KeyError)) == 1


# The store removes what others need the room for.


def remove_snapshots(world: World) -> None:
    world.store._rows.clear()


def test_mount_continues_from_memory_when_its_snapshot_is_removed(world: World, client: Client) -> None:
    first = bytes_of(client.range())
    remove_snapshots(world)
    assert bytes_of(client.range()) == first
    pass_ttl(world)
    assert bytes_of(client.range()) == first
    restart(world)
    assert bytes_of(client.range()) == first, "stored again at the validation"


def test_mount_of_a_removed_snapshot_is_lost_in_the_next_process(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_repository, "first_generation", first_generation)
    client.range()
    remove_snapshots(world)
    restart(world)
    assert isinstance(client.ask().error, VersionLost), "or it would get bytes of two images"


def test_mount_survives_a_store_that_failed_when_it_began(world: World, client: Client) -> None:
    store = use_faulty_repository(world)
    store.broken.update(("add", "save_mounts"))
    first = bytes_of(client.range())
    store.broken.clear()
    pass_ttl(world)
    assert bytes_of(client.range()) == first
    outcome(world.images.mounts.save())
    restart(world)
    assert bytes_of(client.range()) == first
