"""Boot images of the newest version: what is cached, what is asked, what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import CancelledError

from image_service.core.errors import (
    ImageServiceError,
    KernelArgumentInvalid,
    KernelArgumentsTooLarge,
    UnknownBaseImage,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.core.images.reference import (
    ArtifactRef,
    BootArtifact,
    ImageRef,
    Kind,
)
from image_service.server.snapshots.cache.validation import REVALIDATION_TIMEOUT_SECONDS
from image_service.server.snapshots.image_finder import TIMEOUT_SECONDS
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.core.formats.filesystems.iso_builder import KERNEL_ARGUMENTS, build_live_iso, live_files
from tests.core.images.building import base_image
from tests.server.snapshots.doubles import (
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
    infra_env_of,
)
from tests.server.snapshots.mounting import (
    FAILING,
    MOMENT,
    OPEN_REF,
    OTHER_REF,
    Client,
    bytes_of,
    etag_of,
    pass_ttl,
    rounds,
    say,
)
from tests.server.snapshots.pinning import REFUSING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import LoggedFailures

# What is known costs nothing.


def test_image_is_composed_of_base_and_customization(world: World, client: Client) -> None:
    world.assisted.reported = infra_env_of(("quiet",))
    composed = client.range()
    image = composed.representation.image
    assert composed.version.ref == REF
    assert (image.file_name, image.modified) == (f"{ID}-discovery.iso", MODIFIED)
    assert f"{KERNEL_ARGUMENTS} quiet\n".encode() in bytes_of(composed)
    assert world.assisted.config in bytes_of(composed)
    assert sorted(world.assisted.asked) == ["ignition", "infra-env"]


def test_further_range_is_cached_and_asks_nothing(world: World, client: Client) -> None:
    first = client.range()
    world.assisted.held = []
    faulty = len(world.assisted.calls)
    for _ in range(100):
        asked = client.ask()
        assert (asked.was_cached, asked.composed) == (True, first)
    assert len(world.assisted.calls) == faulty == 2
    assert world.threads.waiting == []


def test_only_the_first_range_of_a_mount_awaits_the_repository(world: World, client: Client) -> None:
    """That one asks the store what the client was reading."""
    first = client.range()
    other = attrs.evolve(client, address="192.0.2.2")
    asked = [
        other.ask(ImageRequest(other.reader), moves=False),
        other.ask(),
        other.ask(ImageRequest(other.reader)),
    ]
    assert [each.was_cached for each in asked] == [True, False, True]
    assert {id(each.composed) for each in asked} == {id(first)}
    assert rounds(world) == 1


def test_calls_are_made_for_the_client_that_comes_first(world: World) -> None:
    first = Client(world, "192.0.2.1", ref=ImageRef(ID, None, None, None))
    second = attrs.evolve(first, address="2001:db8::a:2")
    world.assisted.reported = infra_env_of((), VERSION)
    world.clock.advance(7)
    world.assisted.held = []
    asked = [first.ask()]
    world.clock.advance(1)
    asked.append(second.ask())
    world.assisted.release()
    assert all(each.succeeded for each in asked)
    assert world.assisted.asked == ["infra-env", "ignition", "infra-env"]
    (caller,) = set(world.assisted.callers)
    assert caller
    assert (caller.address, caller.came_at) == ("192.0.2.1", 7)
    world.clock.advance(TTL_SECONDS)
    second.ask()
    assert {each and each.address for each in world.assisted.callers[3:]} == {"2001:db8::/64"}
    assert world.assisted.revalidations == [False] * 3 + [True] * len(world.assisted.callers[3:])


def test_boot_artifact_asks_nothing(world: World) -> None:
    ref = ArtifactRef(BootArtifact.ROOTFS, VERSION, "x86_64")
    client = Client(world, ref=ref)
    assert bytes_of(client.range()) == b"rootfs data\n"
    for _ in range(3):
        assert client.ask().was_cached
        assert client.ask(ImageRequest(client.reader)).was_cached
    assert world.assisted.calls == []


def test_concurrent_requests_share_one_round_and_may_be_canceled(world: World) -> None:
    world.assisted.held = []
    clients = [Client(world, f"192.0.2.{number}") for number in range(200)]
    waiting = [world.images.get(ImageRequest(client.reader, ReadMode.RESUME)) for client in clients]
    results: list[list[object]] = [[] for _ in waiting]
    for deferred, result in zip(waiting, results, strict=True):
        deferred.addCallbacks(result.append, lambda failure, result=result: result.append(failure.type))
    for deferred in waiting[::2]:
        deferred.cancel()
    world.assisted.release()
    assert results[::2] == [[CancelledError]] * 100
    assert results[1::2] == [[clients[0].range()]] * 100
    assert rounds(world) == 1
    assert world.assisted.cancelled == []


def test_slow_image_times_out_and_is_found_by_a_retry(world: World, client: Client) -> None:
    world.assisted.held = []
    asked = client.ask()
    world.clock.advance(TIMEOUT_SECONDS - MOMENT)
    late = client.ask()
    assert not asked.is_over
    world.clock.advance(MOMENT)
    assert isinstance(asked.error, UpstreamTimeout)
    assert asked.error.retry_after_seconds == 1
    world.clock.advance(TIMEOUT_SECONDS / 2)
    world.assisted.release()
    assert late.composed is client.range()
    assert rounds(world) == 1
    assert world.clock.getDelayedCalls() == []


def test_retry_finds_what_a_timed_out_request_started(world: World, client: Client) -> None:
    world.assisted.held = []
    asked = client.ask()
    world.clock.advance(4)
    assert isinstance(asked.error, UpstreamTimeout)
    world.assisted.release()
    assert client.ask(ImageRequest(client.reader)).was_cached
    assert rounds(world) == 1


# Snapshots.


def test_fresh_token_changes_no_byte(world: World, client: Client) -> None:
    first = client.range()
    expected = bytes_of(first)
    for number in range(1, 10):
        pass_ttl(world)
        assert client.range() is first
        assert client.whole() is first
        assert rounds(world) == number + 1
    assert bytes_of(first) == expected


def test_kinds_with_the_same_question_share_the_answer(world: World) -> None:
    files = {**live_files(), "images/initrd.addrsize": bytes(range(16))}
    with base_image(build_live_iso(files), architecture="s390x") as base:
        world.catalog.images[VERSION, "s390x", FULL] = base
        initrd, addrsize, other = (
            Client(world, ref=attrs.evolve(REF, architecture="s390x", kind=kind))
            for kind in (Kind.PXE_INITRD, Kind.INITRD_ADDRSIZE, FULL)
        )
        sizes = set()
        for text in ("", "x" * 5000, "y" * 10000):
            pass_ttl(world, text)
            size = initrd.whole().representation.image.size
            sizes.add(size)
            assert bytes_of(addrsize.whole())[8:] == size.to_bytes(8, "big")
        assert (len(sizes), rounds(world)) == (3, 3)
        other.whole()
        assert rounds(world) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda world: say(world, "changed"),
        lambda world: setattr(world.assisted, "reported", infra_env_of(("quiet",))),
        lambda world: setattr(world.assisted, "modified", None),
    ],
)
def test_change_is_seen_by_new_mounts_only(
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
def test_images_are_served_for_the_grace_while_upstream_fails(
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


def test_hanging_upstream_delays_a_mount_once(world: World, client: Client) -> None:
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
    world.assisted.release()


@pytest.mark.parametrize("error", REFUSING)
def test_refusal_stops_mounts_and_named_versions(
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


def test_old_snapshot_is_served_to_mounts_in_progress_only(world: World, client: Client) -> None:
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


# Failures.


def test_unknown_base_is_reported_before_upstream_is_asked(world: World) -> None:
    client = Client(world, ref=attrs.evolve(REF, version="9.99"))
    for want in (None, ImageRequest(client.reader)):
        assert isinstance(client.ask(want).error, UnknownBaseImage)
    assert world.assisted.calls == []


@pytest.mark.parametrize("question", ["ignition", "infra-env"])
@pytest.mark.parametrize("error", [*FAILING, *REFUSING, OSError("odd")])
def test_failure_without_a_snapshot_is_raised_and_not_cached(
    world: World, client: Client, question: str, error: Exception
) -> None:
    world.assisted.failures[question] = error
    assert type(client.ask().error) is type(error)
    world.assisted.failures.clear()
    world.clock.advance(5)
    assert client.range() is client.head()


def test_unexpected_error_is_logged_after_the_timeout(
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
def test_composing_error_is_raised_until_the_infra_env_changes(
    world: World, client: Client, argument: str, error: type[Exception]
) -> None:
    world.assisted.reported = infra_env_of((argument,))
    first = client.ask()
    world.threads.work()  # where arguments that are too long for their area move
    assert type(first.error) is error
    for _ in range(3):
        assert type(client.ask().error) is error
        assert type(client.ask(ImageRequest(client.reader)).error) is error
    world.assisted.reported = infra_env_of(("quiet",))
    world.clock.advance(TTL_SECONDS - MOMENT)
    assert type(client.ask().error) is error
    assert rounds(world) == 1
    assert b" quiet\n" in bytes_of(Client(world, ref=OTHER_REF).range())
    world.clock.advance(MOMENT)
    assert b" quiet\n" in bytes_of(client.range())


def test_composing_error_does_not_affect_a_mount_in_progress(world: World, client: Client) -> None:
    first = client.range()
    world.assisted.reported = infra_env_of(("a;b",))
    world.clock.advance(TTL_SECONDS)
    assert isinstance(client.ask(ImageRequest(client.reader)).error, KernelArgumentInvalid)
    assert client.range() is first


# What the request leaves to the infra-env.


def test_infra_env_completes_the_reference(world: World) -> None:
    world.assisted.reported = infra_env_of(("quiet",), VERSION, DISCONNECTED, "x86_64")
    client = Client(world, ref=OPEN_REF)
    composed = client.range()
    assert composed.version.ref == ImageRef(ID, VERSION, "x86_64", DISCONNECTED)
    assert composed.representation.image.file_name == "agent-ove.x86_64.iso"
    assert world.assisted.calls[:2] == [("infra-env", ID, None, None), ("ignition", ID, DISCONNECTED, None)]
    for _ in range(3):
        assert client.ask().was_cached
    assert world.assisted.asked == ["infra-env", "ignition", "infra-env"]
    named = Client(world, ref=attrs.evolve(REF, kind=DISCONNECTED))
    assert named.range() is composed, "nothing is made twice"


def test_mount_continues_when_the_infra_env_changes_kind(world: World) -> None:
    client = Client(world, ref=OPEN_REF)
    world.assisted.reported = infra_env_of((), VERSION, FULL)
    first = client.range()
    world.assisted.reported = infra_env_of((), VERSION, DISCONNECTED)
    world.clock.advance(TTL_SECONDS)
    assert client.head().version.ref == ImageRef(ID, VERSION, "x86_64", DISCONNECTED)
    assert client.range() is first
