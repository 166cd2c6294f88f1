from __future__ import annotations

import random
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.errors import (
    Conflict,
    Forbidden,
    IgnitionInvalid,
    IgnitionTooLarge,
    ImageServiceError,
    KernelArgumentInvalid,
    KernelArgumentsTooLarge,
    NotFound,
    Unauthorized,
    Unavailable,
    UnknownBaseImage,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.images.reference import (
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
)
from image_service.snapshots import boot_images, image_cache
from image_service.snapshots.boot_images import TIMEOUT_SECONDS
from image_service.snapshots.image_builder import THREAD_BYTES, ImageBuilder
from image_service.snapshots.memory import MemoryRepository
from image_service.snapshots.model import RETRY_SECONDS, ImageRequest, ReadMode
from image_service.snapshots.snapshots import REVALIDATION_TIMEOUT_SECONDS
from tests.formats.iso_builder import KERNEL_ARGUMENTS, build_live_iso, live_files
from tests.images.building import base_image
from tests.pytwisted import ensure_deferred
from tests.snapshots.doubles import (
    DISCONNECTED,
    FULL,
    GRACE_SECONDS,
    ID,
    MAX_AGE_SECONDS,
    MODIFIED,
    REF,
    TTL_SECONDS,
    VERSION,
    WINDOW_SECONDS,
    World,
    evict_everything,
    infra_env_of,
)
from tests.snapshots.doubles import world as make_world
from tests.snapshots.mounting import Client, bytes_of, etag_of, faulty_repository, restart, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.images.boot_image import BootImage
    from tests.conftest import LoggedFailures

MOMENT = 0.01
OTHER_ID = ID.replace("a6c0", "b7d1")
OTHER_REF = attrs.evolve(REF, infra_env_id=OTHER_ID)
OPEN_REF = ImageRef(ID, None, None, None)
CREDENTIALS = [
    None,
    Credentials(CredentialScheme.API_KEY, "one"),
    Credentials(CredentialScheme.API_KEY, "two"),
    Credentials(CredentialScheme.IMAGE_TOKEN, "one"),
    Credentials(CredentialScheme.AUTHORIZATION, "one"),
]
UPSTREAM_FAILS: dict[str, Exception] = {"ignition": UpstreamError("502")}
UPSTREAM_REFUSES: dict[str, Exception] = {"ignition": Forbidden("403")}
ENDED = (Forbidden, NotFound)
ENDING = [Unauthorized("401"), Forbidden("403"), NotFound("404")]
FAILING = [UpstreamError("502"), UpstreamTimeout("504"), Unavailable("429")]
REFUSING = [Conflict("409"), IgnitionInvalid("422")]


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        say(made)
        yield made


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


def rounds(world: World) -> int:
    """How often an Ignition config was asked for: once in each round."""
    return world.assisted.asked.count("ignition")


def pass_ttl(world: World, text: str = "") -> None:
    """Let the answer that is pinned be asked for anew, by whoever comes next."""
    say(world, text)
    world.clock.advance(TTL_SECONDS)


# What is known costs nothing.


def test_an_image_is_made_of_base_and_customization(world: World, client: Client) -> None:
    world.assisted.told = infra_env_of(("quiet",))
    composed = client.range()
    image = composed.representation.image
    assert composed.version.ref == REF
    assert (image.file_name, image.modified) == (f"{ID}-discovery.iso", MODIFIED)
    assert f"{KERNEL_ARGUMENTS} quiet\n".encode() in bytes_of(composed)
    assert world.assisted.config in bytes_of(composed)
    assert sorted(world.assisted.asked) == ["ignition", "infra-env"]


def test_a_further_range_is_there_at_once_and_costs_nothing(world: World, client: Client) -> None:
    first = client.range()
    world.assisted.held = []
    faulty = len(world.assisted.calls)
    for _ in range(100):
        asked = client.ask()
        assert (asked.was_at_once, asked.composed) == (True, first)
    assert len(world.assisted.calls) == faulty == 2
    assert world.threads.waiting == []


def test_so_it_is_for_everything_but_the_first_range_of_a_mount(world: World, client: Client) -> None:
    """That one asks the store what the client was reading."""
    first = client.range()
    other = attrs.evolve(client, address="192.0.2.2")
    asked = [
        other.ask(ImageRequest(other.reader), moves=False),
        other.ask(),
        other.ask(ImageRequest(other.reader)),
    ]
    assert [each.was_at_once for each in asked] == [True, False, True]
    assert {id(each.composed) for each in asked} == {id(first)}
    assert rounds(world) == 1


def test_an_artifact_is_the_base_s_and_nobody_is_asked(world: World) -> None:
    ref = ArtifactRef(BootArtifact.ROOTFS, VERSION, "x86_64")
    client = Client(world, ref=ref)
    assert bytes_of(client.range()) == b"rootfs data\n"
    for _ in range(3):
        assert client.ask().was_at_once
        assert client.ask(ImageRequest(client.reader)).was_at_once
    assert world.assisted.calls == []


def test_two_hundred_askers_make_one_round_and_a_hundred_may_leave(world: World) -> None:
    world.assisted.held = []
    clients = [Client(world, f"192.0.2.{number}") for number in range(200)]
    waiting = [world.images.get(ImageRequest(client.reader, ReadMode.RESUME)) for client in clients]
    results: list[list[object]] = [[] for _ in waiting]
    for deferred, result in zip(waiting, results, strict=True):
        deferred.addCallbacks(result.append, lambda failure, result=result: result.append(failure.type))
    for deferred in waiting[::2]:
        deferred.cancel()
    world.assisted.let_go()
    assert results[::2] == [[CancelledError]] * 100
    assert results[1::2] == [[clients[0].range()]] * 100
    assert rounds(world) == 1
    assert world.assisted.cancelled == []


def test_who_waits_too_long_is_told_so_and_finds_the_image_later(world: World, client: Client) -> None:
    world.assisted.held = []
    asked = client.ask()
    world.clock.advance(TIMEOUT_SECONDS - MOMENT)
    late = client.ask()
    assert not asked.is_over
    world.clock.advance(MOMENT)
    assert isinstance(asked.error, UpstreamTimeout)
    assert asked.error.retry_after_seconds == 1
    world.clock.advance(TIMEOUT_SECONDS / 2)
    world.assisted.let_go()
    assert late.composed is client.range()
    assert rounds(world) == 1
    assert world.clock.getDelayedCalls() == []


def test_a_retry_finds_what_those_who_left_have_started(world: World, client: Client) -> None:
    world.assisted.held = []
    asked = client.ask()
    world.clock.advance(4)
    assert isinstance(asked.error, UpstreamTimeout)
    world.assisted.let_go()
    assert client.ask(ImageRequest(client.reader)).was_at_once
    assert rounds(world) == 1


# Snapshots.


def test_a_fresh_token_changes_no_byte(world: World, client: Client) -> None:
    first = client.range()
    expected = bytes_of(first)
    for number in range(1, 10):
        pass_ttl(world)
        assert client.range() is first
        assert client.whole() is first
        assert rounds(world) == number + 1
    assert bytes_of(first) == expected


def test_kinds_that_ask_the_same_share_the_answer(world: World) -> None:
    files = {**live_files(), "images/initrd.addrsize": bytes(range(16))}
    with base_image(build_live_iso(files), architecture="s390x") as base:
        world.catalog.images[VERSION, "s390x", FULL] = base
        initrd, told, other = (
            Client(world, ref=attrs.evolve(REF, architecture="s390x", kind=kind))
            for kind in (Kind.PXE_INITRD, Kind.INITRD_ADDRSIZE, FULL)
        )
        sizes = set()
        for text in ("", "x" * 5000, "y" * 10000):
            pass_ttl(world, text)
            size = initrd.whole().representation.image.size
            sizes.add(size)
            assert bytes_of(told.whole())[8:] == size.to_bytes(8, "big")
        assert (len(sizes), rounds(world)) == (3, 3)
        other.whole()
        assert rounds(world) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda world: say(world, "changed"),
        lambda world: setattr(world.assisted, "told", infra_env_of(("quiet",))),
        lambda world: setattr(world.assisted, "modified", None),
    ],
)
def test_a_change_is_seen_by_who_begins_and_not_by_who_goes_on(
    world: World, client: Client, change: Callable[[World], None]
) -> None:
    first = client.range()
    expected = bytes_of(first)
    change(world)
    world.clock.advance(TTL_SECONDS)
    newcomer = attrs.evolve(client, address="192.0.2.2")
    second = newcomer.range()
    assert second is not first
    for _ in range(5):
        assert client.range() is first
        assert client.head() is second
        assert newcomer.range() is second
        world.clock.advance(WINDOW_SECONDS / 2)
    assert bytes_of(first) == expected


@pytest.mark.parametrize("error", FAILING)
def test_while_assisted_service_fails_everything_goes_on_for_the_grace(
    world: World, client: Client, error: ImageServiceError
) -> None:
    first = client.range()
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures["ignition"] = error
    for _ in range(int(GRACE_SECONDS / 50)):
        assert client.range() is first
        assert client.whole() is first
        world.clock.advance(50)
    for want in (None, ImageRequest(client.reader)):
        assert type(client.ask(want).error) is type(error)
    world.assisted.failures.clear()
    world.clock.advance(RETRY_SECONDS)
    assert client.range() is first


def test_a_hanging_assisted_service_holds_a_mount_up_for_a_moment_at_most(
    world: World, client: Client
) -> None:
    first = client.range()
    world.clock.advance(TTL_SECONDS)
    world.assisted.held = []
    waiting = client.ask()
    world.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert waiting.composed is first
    for _ in range(100):
        assert client.range() is first
    world.clock.advance(25)
    assert client.range() is first
    assert rounds(world) == 2
    world.assisted.let_go()


@pytest.mark.parametrize("error", ENDING)
def test_a_refusal_ends_mounts_in_progress_and_named_versions_too(
    world: World, client: Client, error: ImageServiceError
) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    other = attrs.evolve(client, address="192.0.2.2")
    second = other.range()
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures["ignition"] = error
    wants = [
        ImageRequest(client.reader, ReadMode.NAMED, (etag_of(first),)),
        ImageRequest(client.reader, ReadMode.NAMED, (), first.representation.date),
        ImageRequest(client.reader, ReadMode.RESUME),
        ImageRequest(other.reader, ReadMode.RESUME),
        ImageRequest(other.reader, ReadMode.NAMED, (etag_of(second),)),
        ImageRequest(client.reader),
    ]
    for _ in range(2):
        for want in wants:
            assert type(client.ask(want).error) is type(error)


@pytest.mark.parametrize("error", REFUSING)
def test_a_state_without_an_image_is_told_to_who_begins_alone(
    world: World, client: Client, error: ImageServiceError
) -> None:
    first = client.range()
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures["ignition"] = error
    newcomer = attrs.evolve(client, address="192.0.2.2")
    for _ in range(3):
        assert client.range() is first
        assert client.named(etag_of(first)) is first
        assert type(newcomer.ask().error) is type(error)
        assert type(client.ask(ImageRequest(client.reader)).error) is type(error)
        world.clock.advance(TTL_SECONDS / 2)


def test_what_is_too_old_is_for_who_goes_on_alone(world: World, client: Client) -> None:
    first = client.range()
    while world.clock.seconds() < MAX_AGE_SECONDS - TTL_SECONDS:
        pass_ttl(world)
        assert client.range() is first
    pass_ttl(world)
    world.assisted.failures["ignition"] = UpstreamError("502")
    assert client.range() is first
    assert isinstance(client.ask(ImageRequest(client.reader)).error, UpstreamError)
    world.assisted.failures.clear()
    world.clock.advance(RETRY_SECONDS)
    second = client.head()
    assert etag_of(second) != etag_of(first), "it has other tokens in it"
    assert client.range() is first


# Mounts.


def test_a_mount_is_over_a_while_after_its_last_read(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    client.head()
    assert client.range() is first
    world.clock.advance(WINDOW_SECONDS)
    assert client.range() is first
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is not first


def test_a_whole_get_moves_its_reader_and_a_head_does_not(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    second = client.head()
    assert second is not first
    assert client.range() is first
    assert client.whole() is second
    assert client.range() is second
    assert client.named(etag_of(first)) is first


def test_an_answer_that_is_being_sent_keeps_its_mount_in_progress(world: World, client: Client) -> None:
    first = client.whole()
    download = world.images.record_mount(ImageRequest(client.reader), first)
    pass_ttl(world, "changed")
    world.clock.advance(10 * WINDOW_SECONDS)
    assert client.head() is not first
    assert client.range() is first
    world.images.mounts.end_response(download)
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is not first


def test_clients_have_mounts_of_their_own(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    others = [
        attrs.evolve(client, address="192.0.2.2"),
        attrs.evolve(client, credentials=CREDENTIALS[1]),
        attrs.evolve(client, ref=OPEN_REF),
    ]
    world.assisted.told = infra_env_of((), VERSION)
    assert all(other.range() is not first for other in others)
    assert client.range() is first


def test_two_ranges_that_begin_a_mount_together_get_one_version(world: World, client: Client) -> None:
    """What the first of them was given may be composed in a thread while the second overtakes it."""
    say(world, "x" * THREAD_BYTES)
    other = attrs.evolve(client, address="192.0.2.2")
    other.ask()
    world.threads.work()
    evict_everything(world)
    pass_ttl(world, "changed")
    world.assisted.held = []
    early = client.ask()
    world.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert len(world.threads.waiting) == 1
    world.assisted.let_go()
    late = client.range()
    assert b"changed" in bytes_of(late)
    assert not early.is_over
    world.threads.work()
    assert early.composed is late
    assert client.range() is late


def test_a_mount_that_was_refused_does_not_go_on_with_another_image(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world)
    world.assisted.failures["ignition"] = Unauthorized("for a moment")
    assert isinstance(client.ask().error, Unauthorized)
    world.assisted.failures.clear()
    for _ in range(3):
        assert isinstance(client.ask().error, NotFound)
    newcomer = attrs.evolve(client, address="192.0.2.2")
    second = newcomer.range()
    assert client.head() is second
    assert newcomer.named(etag_of(first)) is second
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is second


# Versions that are named.


def test_the_version_that_an_etag_names_is_served_for_as_long_as_it_is_retained(
    world: World, client: Client
) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    second = client.head()
    world.clock.advance(10 * WINDOW_SECONDS)
    anyone = attrs.evolve(client, address="192.0.2.2")
    for reader in (client, anyone):
        assert reader.named(etag_of(first)) is first
        assert reader.named(etag_of(second)) is second
        assert reader.named('"other"') is second
        assert reader.named('"other"', etag_of(first)) is first
        assert reader.ask(ImageRequest(reader.reader, ReadMode.NAMED, ('"other"',)), moves=False).was_at_once
    assert client.range() is first, "what it was served last"


def test_an_etag_that_a_head_has_shown_is_retained_too(world: World, client: Client) -> None:
    first = client.head()
    pass_ttl(world, "changed")
    assert client.head() is not first
    assert client.named(etag_of(first)) is first


def test_an_etag_is_a_key_for_its_own_credentials_and_reference_alone(world: World) -> None:
    clients = [Client(world, credentials=credentials) for credentials in CREDENTIALS]
    first = clients[1].range()
    pass_ttl(world, "changed")
    for other in (*clients[:1], *clients[2:], Client(world, credentials=CREDENTIALS[1], ref=OTHER_REF)):
        assert other.named(etag_of(first)) is not first
    assert clients[1].named(etag_of(first)) is first


def test_a_date_names_the_version_that_is_being_read_alone(world: World, client: Client) -> None:
    """Two snapshots may have one date."""
    first = client.range()
    date = first.representation.date
    pass_ttl(world, "changed")
    newcomer = attrs.evolve(client, address="192.0.2.2")
    second = newcomer.head()
    assert second.representation.date == date
    assert client.named(date=date) is first
    assert newcomer.named(date=date) is second
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.named(date=date) is second


def test_what_is_named_and_lost_is_answered_with_the_newest(world: World, client: Client) -> None:
    store = faulty_repository(world)
    first = client.range()
    pass_ttl(world, "changed")
    client.head()
    evict_everything(world)
    store.store = MemoryRepository()
    served = client.named(etag_of(first))
    assert etag_of(served) != etag_of(first)
    assert etag_of(served) == etag_of(client.head())


# The process that follows.


def test_after_a_restart_a_mount_goes_on_with_the_same_bytes(world: World, client: Client) -> None:
    expected = bytes_of(client.range())
    restart(world)
    assert bytes_of(client.range()) == expected
    assert rounds(world) == 1
    assert client.ask().was_at_once


def test_also_with_those_of_a_superseded_generation(world: World, client: Client) -> None:
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


def test_a_head_or_another_client_that_comes_first_changes_nothing(world: World, client: Client) -> None:
    """They have put the newest in memory, where a range without a mount would find it."""
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    client.head()
    restart(world)
    client.head()
    attrs.evolve(client, address="192.0.2.2").range()
    assert bytes_of(client.range()) == first


def test_a_mount_that_changed_hands_in_its_first_moment_is_known(world: World, client: Client) -> None:
    """Nobody but the mount itself has saved it, when the process is killed right after its first range."""
    first = bytes_of(client.range())
    restart(world)
    pass_ttl(world, "changed")
    assert bytes_of(client.range()) == first


def test_none_goes_on_after_its_window(world: World, client: Client) -> None:
    first = bytes_of(client.range())
    pass_ttl(world, "changed")
    world.clock.advance(WINDOW_SECONDS - TTL_SECONDS)
    restart(world)
    assert bytes_of(client.range()) == first
    restart(world)
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert bytes_of(client.range()) != first


def test_a_mount_that_is_recalled_has_read_when_it_did(world: World, client: Client) -> None:
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
async def test_what_is_saved_now_and_then_tells_when_it_was_read_last(world: World, client: Client) -> None:
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


def test_a_version_is_named_across_a_restart_by_who_was_reading_it(world: World, client: Client) -> None:
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


def test_credentials_read_nothing_of_each_other_s_after_a_restart_either(world: World) -> None:
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


@pytest.mark.parametrize("error", ENDING)
def test_who_may_not_see_it_any_more_is_told_so_after_a_restart_too(
    world: World, client: Client, error: ImageServiceError
) -> None:
    client.range()
    restart(world)
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures["ignition"] = error
    assert type(client.ask().error) is type(error)
    restart(world)
    assert type(client.ask().error) is type(error)


def test_after_a_restart_assisted_service_may_be_down(world: World, client: Client) -> None:
    expected = bytes_of(client.range())
    restart(world)
    world.clock.advance(WINDOW_SECONDS)
    world.assisted.failures = dict.fromkeys(("ignition", "infra-env"), UpstreamError("down"))
    assert bytes_of(client.range()) == expected
    assert bytes_of(client.whole()) == expected


def test_a_mount_whose_base_is_another_now_is_refused_while_it_is_in_progress(
    world: World, client: Client
) -> None:
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
def test_one_whose_infra_env_is_for_another_kind_now_goes_on(world: World, then: Kind, now: Kind) -> None:
    """Both kinds may be made of one base, and have snapshots of one number."""
    client = Client(world, ref=OPEN_REF)
    world.assisted.told = infra_env_of((), VERSION, then)
    world.catalog.images[VERSION, "x86_64", DISCONNECTED] = world.catalog.images[VERSION, "x86_64", FULL]
    first = bytes_of(client.range())
    say(world, "of the other kind")
    other = Client(world, ref=attrs.evolve(REF, kind=now)).range()
    world.assisted.told = infra_env_of((), VERSION, now)
    restart(world)
    assert bytes_of(client.range()) == first
    assert bytes_of(client.whole()) == bytes_of(other)


def test_one_whose_short_url_stands_for_another_version_now_goes_on(world: World) -> None:
    client = Client(world, ref=OPEN_REF)
    world.assisted.told = infra_env_of((), VERSION)
    first = bytes_of(client.range())
    with base_image(build_live_iso({**live_files(), "coreos/other": b"other"}), version="4.21") as other:
        world.catalog.images["4.21", "x86_64", FULL] = other
        world.assisted.told = infra_env_of((), "4.21")
        restart(world)
        world.assisted.calls.clear()
        assert bytes_of(client.range()) == first
        assert world.assisted.asked == [], "nobody needs to be asked"
        assert client.head().version.base is other
        assert bytes_of(client.range()) == first
        del world.catalog.images[VERSION, "x86_64", FULL]
        restart(world)
        assert isinstance(client.ask().error, NotFound)


def test_it_is_not_made_again_for_who_asks_anew(world: World) -> None:
    """It is found by its base's build then, and by the infra-env's version by who asks anew."""
    client = Client(world, ref=OPEN_REF)
    world.assisted.told = infra_env_of((), VERSION)
    client.range()
    restart(world)
    assert client.range() is client.head()


def test_bases_of_one_content_and_two_builds_make_two_images(world: World) -> None:
    """A minimal ISO names the build that its rootfs is of."""
    one, other = (Client(world, ref=attrs.evolve(REF, version=version)) for version in (VERSION, "4.21"))
    base = world.catalog.images[VERSION, "x86_64", FULL]
    world.catalog.images["4.21", "x86_64", FULL] = attrs.evolve(base, version="4.21")
    assert one.head().version != other.head().version


def test_two_processes_give_one_client_one_image(world: World, client: Client) -> None:
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
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_no_mount_gets_bytes_of_two_images(steps: list[tuple[str, int]]) -> None:
    with make_world() as world:
        say(world)
        clients = [Client(world, f"192.0.2.{number}") for number in range(2)]
        clients.append(Client(world, credentials=CREDENTIALS[1]))
        reading: dict[Client, tuple[bytes, float]] = {}
        ended: set[Client] = set()
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
                    before, read_at = reading.get(client, (b"", -1000.0))
                    if not asked.succeeded and isinstance(asked.error, ENDED):
                        ended |= {other for other in clients if other.credentials == client.credentials}
                    if step == "range" and now <= read_at + WINDOW_SECONDS and client not in ended:
                        assert bytes_of(asked.composed) == before
                    if step != "head" and asked.succeeded:
                        ended.discard(client)
                        reading[client] = (bytes_of(asked.composed), now)


# A store that fails.


@pytest.mark.parametrize(
    "broken",
    ["find_newest", "load", "add", "record_validation", "end", "save_mounts", "find_mount", "everything"],
)
@pytest.mark.parametrize("from_the_start", [True, False])
def test_whatever_fails_mounts_go_on_from_memory(
    world: World, client: Client, broken: str, *, from_the_start: bool
) -> None:
    store = faulty_repository(world)
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


def test_a_mount_that_was_in_memory_alone_is_refused_after_a_restart(world: World, client: Client) -> None:
    """Other tokens are in what is asked for now."""
    store = faulty_repository(world)
    store.broken = {"add"}
    client.range()
    store.broken = set()
    restart(world)
    say(world)
    assert isinstance(client.ask().error, NotFound)
    expected = client.head()
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is expected


def test_what_the_store_has_lost_is_asked_for_anew_by_who_begins(world: World, client: Client) -> None:
    store = faulty_repository(world)
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


def test_a_mount_that_cannot_be_saved_is_logged_and_served(
    world: World, client: Client, logged_failures: LoggedFailures
) -> None:
    store = faulty_repository(world)
    store.broken, store.error = {"save_mounts"}, KeyError("odd")
    assert client.range() is client.range()
    assert len(logged_failures.flush(KeyError)) == 1


# Failures.


def test_a_base_that_is_not_there_is_told_before_anything_is_asked(world: World) -> None:
    client = Client(world, ref=attrs.evolve(REF, version="9.99"))
    for want in (None, ImageRequest(client.reader)):
        assert isinstance(client.ask(want).error, UnknownBaseImage)
    assert world.assisted.calls == []


@pytest.mark.parametrize("question", ["ignition", "infra-env"])
@pytest.mark.parametrize("error", [*FAILING, *ENDING, *REFUSING, OSError("odd")])
def test_a_failure_without_a_snapshot_is_told_and_not_kept(
    world: World, client: Client, question: str, error: Exception
) -> None:
    world.assisted.failures[question] = error
    assert type(client.ask().error) is type(error)
    world.assisted.failures.clear()
    world.clock.advance(5)
    assert client.range() is client.head()


def test_what_nobody_foresaw_is_logged_where_nobody_waits_any_more(
    world: World, client: Client, logged_failures: LoggedFailures
) -> None:
    world.assisted.held = []
    asked = client.ask()
    world.clock.advance(TIMEOUT_SECONDS)
    assert isinstance(asked.error, UpstreamTimeout)
    for gate in world.assisted.held:
        gate.errback(KeyError("odd"))
    assert len(logged_failures.flush(KeyError)) == 1


@pytest.mark.parametrize(
    ("argument", "error"), [("a;b", KernelArgumentInvalid), ("x" * 5000, KernelArgumentsTooLarge)]
)
def test_what_cannot_be_composed_is_told_until_the_infra_env_is_corrected(
    world: World, client: Client, argument: str, error: type[Exception]
) -> None:
    world.assisted.told = infra_env_of((argument,))
    for _ in range(3):
        assert type(client.ask().error) is error
        assert type(client.ask(ImageRequest(client.reader)).error) is error
    world.assisted.told = infra_env_of(("quiet",))
    world.clock.advance(TTL_SECONDS - MOMENT)
    assert type(client.ask().error) is error
    assert rounds(world) == 1
    assert b" quiet\n" in bytes_of(Client(world, ref=OTHER_REF).range())
    world.clock.advance(MOMENT)
    assert b" quiet\n" in bytes_of(client.range())


def test_a_refusal_to_compose_is_for_who_begins_and_not_for_a_mount_in_progress(
    world: World, client: Client
) -> None:
    first = client.range()
    world.assisted.told = infra_env_of(("a;b",))
    world.clock.advance(TTL_SECONDS)
    assert isinstance(client.ask(ImageRequest(client.reader)).error, KernelArgumentInvalid)
    assert client.range() is first


# What the request leaves to the infra-env.


def test_an_infra_env_names_its_own_image(world: World) -> None:
    world.assisted.told = infra_env_of(("quiet",), VERSION, DISCONNECTED, "x86_64")
    client = Client(world, ref=OPEN_REF)
    composed = client.range()
    assert composed.version.ref == ImageRef(ID, VERSION, "x86_64", DISCONNECTED)
    assert composed.representation.image.file_name == "agent-ove.x86_64.iso"
    assert world.assisted.calls[:2] == [("infra-env", ID, None, None), ("ignition", ID, DISCONNECTED, None)]
    for _ in range(3):
        assert client.ask().was_at_once
    assert world.assisted.asked == ["infra-env", "ignition", "infra-env"]
    named = Client(world, ref=attrs.evolve(REF, kind=DISCONNECTED))
    assert named.range() is composed, "nothing is made twice"


def test_when_the_infra_env_changes_its_mind_mounts_go_on(world: World) -> None:
    client = Client(world, ref=OPEN_REF)
    world.assisted.told = infra_env_of((), VERSION, FULL)
    first = client.range()
    world.assisted.told = infra_env_of((), VERSION, DISCONNECTED)
    world.clock.advance(TTL_SECONDS)
    assert client.head().version.ref == ImageRef(ID, VERSION, "x86_64", DISCONNECTED)
    assert client.range() is first


# Threads.


def test_a_large_config_is_composed_in_a_thread(world: World, client: Client) -> None:
    say(world, "x" * THREAD_BYTES)
    asked = [client.ask() for _ in range(3)]
    assert not any(each.is_over for each in asked)
    assert len(world.threads.waiting) == 1
    world.threads.work()
    assert {id(each.composed) for each in asked} == {id(client.range())}
    assert world.threads.waiting == []


def test_what_fails_in_a_thread_is_told(world: World, client: Client) -> None:
    say(world, random.Random(7).randbytes(2**19).hex())  # noqa: S311 - text that packs to half of its length
    asked = client.ask()
    world.threads.work()
    assert isinstance(asked.error, IgnitionTooLarge)


@ensure_deferred
async def test_the_reactor_s_thread_does_not_compose_it(world: World, reactor: EPollReactor) -> None:
    threads: list[threading.Thread] = []
    pool = ThreadPool(0, 1, "compose")
    pool.start()

    def in_thread(work: object) -> Deferred[BootImage]:
        assert callable(work)
        return deferToThreadPool(reactor, pool, partial(watched, work))

    def watched(work: object) -> BootImage:
        assert callable(work)
        threads.append(threading.current_thread())
        made: BootImage = work()
        return made

    say(world, "x" * THREAD_BYTES)
    images = world.make_images(in_thread)
    try:
        composed = await images.get(ImageRequest(Client(world).reader))
    finally:
        pool.stop()
    assert composed.representation.image.size == world.catalog.images[VERSION, "x86_64", FULL].file.size
    assert threads
    assert threads[0] is not threading.current_thread()


# Bounds.


def clients_of(world: World, number: int) -> list[Client]:
    refs = [attrs.evolve(REF, infra_env_id=ID.replace("a6c0", f"000{digit}")) for digit in range(number)]
    return [Client(world, ref=ref) for ref in refs]


def test_the_least_recently_used_gives_way_and_is_composed_again_to_the_same_bytes(world: World) -> None:
    clients = clients_of(world, 5)
    world.cache_bytes = 3 * clients[4].range().held_bytes
    restart(world)
    composed = [client.range() for client in clients[:3]]
    expected = [bytes_of(each) for each in composed]
    assert clients[0].range() is composed[0]
    clients[3].range()
    assert clients[0].range() is composed[0]
    assert clients[2].range() is composed[2]
    say(world, "changed")
    again = clients[1].range()
    assert again is not composed[1]
    assert (bytes_of(again), etag_of(again)) == (expected[1], etag_of(composed[1]))
    assert rounds(world) == 5


def test_one_is_kept_however_little_may_be_held(world: World, client: Client) -> None:
    world.cache_bytes = 0
    restart(world)
    first = client.range()
    assert client.ask().was_at_once
    other = Client(world, ref=OTHER_REF)
    other.range()
    assert other.ask().was_at_once
    assert not client.ask().was_at_once
    assert bytes_of(client.range()) == bytes_of(first)


@ensure_deferred
async def test_a_number_that_is_given_again_after_hours_is_not_that_of_another_image(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has forgotten the question, and so has the process, but not what it composed."""
    monkeypatch.setattr("image_service.snapshots.cache.MAX_ENTRIES", 1)
    restart(world)
    first = client.range()
    Client(world, ref=OTHER_REF).range()
    pass_ttl(world, "changed")
    world.clock.advance(10 * WINDOW_SECONDS)
    await world.store.remove_unused(world.clock.seconds())
    second = client.range()
    assert second.version.snapshot is not None
    assert first.version.snapshot is not None
    assert second.version.snapshot.generation == first.version.snapshot.generation == 1
    assert b"changed" in bytes_of(second)


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(0, 40_000))
@settings(max_examples=20)
def test_what_is_held_is_bounded_and_counted_right(picks: list[int], limit_bytes: int) -> None:
    with make_world() as world:
        say(world)
        world.cache_bytes = limit_bytes
        restart(world)
        clients = clients_of(world, 5)
        for pick in picks:
            clients[pick].range()
            found = [world.images.get_cached(ImageRequest(client.reader)) for client in clients]
            kept = [composed for composed in found if composed is not None]
            assert world.images.held_bytes == sum(composed.held_bytes for composed in kept)
            assert world.images.held_bytes <= limit_bytes or len(kept) == 1


def test_refusals_and_tags_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "MAX_REFUSED", 2)
    monkeypatch.setattr(boot_images, "MAX_RETAINED", 2)
    restart(world)
    clients = clients_of(world, 4)
    first = [client.range() for client in clients]
    pass_ttl(world, "changed")
    world.clock.advance(WINDOW_SECONDS)
    assert clients[3].named(etag_of(first[3])) is first[3]
    assert clients[0].named(etag_of(first[0])) is not first[0]
    world.assisted.told = infra_env_of(("a;b",))
    world.clock.advance(TTL_SECONDS)
    for client in clients:
        assert isinstance(client.ask(ImageRequest(client.reader)).error, KernelArgumentInvalid)
    built = []
    monkeypatch.setattr(ImageBuilder, "build", lambda _, ref, *__: built.append(ref))
    for client in reversed(clients[2:]):
        assert isinstance(client.ask(ImageRequest(client.reader)).error, KernelArgumentInvalid)
    assert built == []
    clients[0].ask(ImageRequest(client.reader))


def test_a_refusal_that_is_kept_keeps_nothing_alive_and_does_not_grow(world: World, client: Client) -> None:
    world.assisted.told = infra_env_of(("a;b",))
    errors = [client.ask().error for _ in range(5)]
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors[1:]}) == 1
    assert len({id(error) for error in errors}) == 5
    assert len({str(error) for error in errors}) == 1
