"""Boot images of the version that a client reads or names."""

from __future__ import annotations

import attrs
import pytest

from image_service.core.errors import Unauthorized
from image_service.server.snapshots.cache.validation import REVALIDATION_TIMEOUT_SECONDS
from image_service.server.snapshots.image_builder import THREAD_BYTES
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.server.snapshots.doubles import (
    TTL_SECONDS,
    VERSION,
    WINDOW_SECONDS,
    World,
    evict_everything,
    infra_env_of,
)
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.mounting import (
    MOMENT,
    OPEN_REF,
    OTHER_REF,
    Client,
    bytes_of,
    etag_of,
    pass_ttl,
    restart,
    say,
    use_faulty_repository,
)
from tests.server.snapshots.pinning import CREDENTIALS

# Mounts.


def test_mount_is_over_a_window_after_its_last_read(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    client.head()
    assert client.range() is first
    world.clock.advance(WINDOW_SECONDS)
    assert client.range() is first
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is not first


def test_whole_get_moves_its_reader_to_the_newest_and_head_does_not(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    second = client.head()
    assert second is not first
    assert client.range() is first
    assert client.whole() is second
    assert client.range() is second
    assert client.named(etag_of(first)) is first


def test_response_in_progress_keeps_its_mount(world: World, client: Client) -> None:
    first = client.whole()
    download = world.images.record_mount(ImageRequest(client.reader), first)
    pass_ttl(world, "changed")
    world.clock.advance(10 * WINDOW_SECONDS)
    assert client.head() is not first
    assert client.range() is first
    world.images.mounts.end_response(download)
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is not first


def test_clients_have_separate_mounts(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    others = [
        attrs.evolve(client, address="192.0.2.2"),
        attrs.evolve(client, credentials=CREDENTIALS[1]),
        attrs.evolve(client, ref=OPEN_REF),
    ]
    world.assisted.reported = infra_env_of((), VERSION)
    assert all(other.range() is not first for other in others)
    assert client.range() is first


def test_concurrent_first_ranges_get_one_version(world: World, client: Client) -> None:
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
    world.assisted.release()
    late = client.range()
    assert b"changed" in bytes_of(late)
    assert not early.is_over
    world.threads.work()
    assert early.composed is late
    assert client.range() is late


def refuse(world: World, client: Client) -> None:
    """Have a client be refused once; the next answer is asked for."""
    world.clock.advance(TTL_SECONDS - MOMENT)
    client.range()
    world.clock.advance(MOMENT)
    world.assisted.failures["ignition"] = Unauthorized("for a moment")
    assert isinstance(client.ask().error, Unauthorized)
    world.assisted.failures.clear()
    assert isinstance(client.ask().error, Unauthorized), "remembered for a moment"
    world.clock.advance(RETRY_SECONDS)


def test_mount_goes_on_when_a_refusal_is_taken_back(world: World, client: Client) -> None:
    first = client.range()
    for _ in range(3):
        say(world)
        refuse(world, client)
        assert client.range() is first
        assert client.named(etag_of(first)) is first
        assert client.head() is first


def test_mount_in_the_middle_of_a_lost_version_is_refused(world: World, client: Client) -> None:
    first = client.range()
    say(world, "changed")
    refuse(world, client)
    for _ in range(3):
        assert isinstance(client.ask().error, VersionLost)
    newcomer = attrs.evolve(client, address="192.0.2.2")
    second = newcomer.range()
    assert isinstance(client.ask().error, VersionLost)
    assert newcomer.named(etag_of(first)) is second
    world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert client.range() is second


@pytest.mark.parametrize("is_composed", [False, True])
@pytest.mark.parametrize("begin", ["head", "whole", "beginning"])
def test_reader_of_a_lost_version_that_starts_over_gets_the_newest(
    world: World, client: Client, begin: str, *, is_composed: bool
) -> None:
    first = client.range()
    say(world, "changed")
    refuse(world, client)
    assert isinstance(client.ask().error, VersionLost)
    if is_composed:
        attrs.evolve(client, address="192.0.2.2").range()
    beginning = ImageRequest(client.reader, ReadMode.RESUME, starts_over=True)
    second = client.ask(beginning).composed if begin == "beginning" else getattr(client, begin)()
    assert bytes_of(second) != bytes_of(first)
    for _ in range(2):
        assert client.range() is second
        restart(world)
        second = client.range()


def test_range_at_the_beginning_resumes_a_version_that_is_not_lost(world: World, client: Client) -> None:
    first = client.range()
    pass_ttl(world, "changed")
    assert client.head() is not first
    assert client.ask(ImageRequest(client.reader, ReadMode.RESUME, starts_over=True)).composed is first


# Versions that are named.


def test_etag_names_its_version_while_that_is_retained(world: World, client: Client) -> None:
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
        assert reader.ask(ImageRequest(reader.reader, ReadMode.NAMED, ('"other"',)), moves=False).was_cached
    assert client.range() is first, "what it was served last"


def test_etag_of_a_head_is_retained(world: World, client: Client) -> None:
    first = client.head()
    pass_ttl(world, "changed")
    assert client.head() is not first
    assert client.named(etag_of(first)) is first


def test_etag_is_valid_for_its_credentials_and_reference_only(world: World) -> None:
    clients = [Client(world, credentials=credentials) for credentials in CREDENTIALS]
    first = clients[1].range()
    pass_ttl(world, "changed")
    for other in (*clients[:1], *clients[2:], Client(world, credentials=CREDENTIALS[1], ref=OTHER_REF)):
        assert other.named(etag_of(first)) is not first
    assert clients[1].named(etag_of(first)) is first


def test_date_names_only_the_version_being_read(world: World, client: Client) -> None:
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


def test_etag_of_a_lost_version_gets_the_newest_version(world: World, client: Client) -> None:
    store = use_faulty_repository(world)
    first = client.range()
    pass_ttl(world, "changed")
    client.head()
    evict_everything(world)
    store.store = MemoryRepository()
    served = client.named(etag_of(first))
    assert etag_of(served) != etag_of(first)
    assert etag_of(served) == etag_of(client.head())
