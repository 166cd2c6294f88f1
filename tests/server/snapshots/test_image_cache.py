"""Composing in threads, and the bounds of what is composed."""

from __future__ import annotations

import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.core.errors import (
    KernelArgumentInvalid,
)
from image_service.server.snapshots import image_cache, retention
from image_service.server.snapshots.image_builder import THREAD_BYTES, ImageBuilder
from image_service.server.snapshots.versions import ImageRequest
from tests.pytwisted import ensure_deferred
from tests.server.snapshots.doubles import (
    FULL,
    ID,
    REF,
    TTL_SECONDS,
    VERSION,
    WINDOW_SECONDS,
    World,
    infra_env_of,
)
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import (
    OTHER_REF,
    Client,
    bytes_of,
    etag_of,
    pass_ttl,
    restart,
    rounds,
    say,
)

if TYPE_CHECKING:
    import pytest
    from twisted.internet.defer import Deferred
    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.images.boot_image import BootImage

# Threads.


def test_large_config_is_composed_in_a_thread(world: World, client: Client) -> None:
    say(world, "x" * THREAD_BYTES)
    asked = [client.ask() for _ in range(3)]
    assert not any(each.is_over for each in asked)
    assert len(world.threads.waiting) == 1
    world.threads.work()
    assert {id(each.composed) for each in asked} == {id(client.range())}
    assert world.threads.waiting == []


def test_error_in_a_thread_is_raised(world: World, client: Client) -> None:
    say(world, "x" * THREAD_BYTES)
    world.assisted.reported = infra_env_of(("a;b",))
    asked = client.ask()
    world.threads.work()
    assert isinstance(asked.error, KernelArgumentInvalid)


@ensure_deferred
async def test_large_config_is_not_composed_in_the_reactor_thread(
    world: World, reactor: EPollReactor
) -> None:
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


def test_least_recently_used_image_is_evicted_and_composed_to_the_same_bytes(world: World) -> None:
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


def test_last_image_is_kept_however_low_the_limit(world: World, client: Client) -> None:
    world.cache_bytes = 0
    restart(world)
    first = client.range()
    assert client.ask().was_cached
    other = Client(world, ref=OTHER_REF)
    other.range()
    assert other.ask().was_cached
    assert not client.ask().was_cached
    assert bytes_of(client.range()) == bytes_of(first)


@ensure_deferred
async def test_reused_generation_number_is_another_version(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has forgotten the question, and so has the process, but not what it composed."""
    monkeypatch.setattr("image_service.server.snapshots.cache.snapshot_cache.MAX_ENTRIES", 1)
    restart(world)
    first = client.range()
    Client(world, ref=OTHER_REF).range()
    pass_ttl(world, "changed")
    world.clock.advance(10 * WINDOW_SECONDS)
    await world.store.remove_unused(world.clock.seconds(), world.clock.seconds())
    second = client.range()
    assert second.version.snapshot is not None
    assert first.version.snapshot is not None
    assert second.version.snapshot.generation == first.version.snapshot.generation == 1
    assert b"changed" in bytes_of(second)


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(0, 40_000))
@settings(max_examples=20)
def test_held_bytes_are_bounded_and_exact(picks: list[int], limit_bytes: int) -> None:
    with make_world() as world:
        say(world)
        world.cache_bytes = limit_bytes
        restart(world)
        clients = clients_of(world, 5)
        for pick in picks:
            clients[pick].range()
            found = [world.images.get_cached_image(ImageRequest(client.reader)) for client in clients]
            kept = [composed for composed in found if composed is not None]
            assert world.images.cache.held_bytes == sum(composed.held_bytes for composed in kept)
            assert world.images.cache.held_bytes <= limit_bytes or len(kept) == 1


def test_cached_refusals_and_etags_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "MAX_REFUSED", 2)
    monkeypatch.setattr(retention, "MAX_RETAINED", 2)
    restart(world)
    clients = clients_of(world, 4)
    first = [client.range() for client in clients]
    pass_ttl(world, "changed")
    world.clock.advance(WINDOW_SECONDS)
    assert clients[3].named(etag_of(first[3])) is first[3]
    assert clients[0].named(etag_of(first[0])) is not first[0]
    world.assisted.reported = infra_env_of(("a;b",))
    world.clock.advance(TTL_SECONDS)
    for client in clients:
        assert isinstance(client.ask(ImageRequest(client.reader)).error, KernelArgumentInvalid)
    built = []
    monkeypatch.setattr(ImageBuilder, "build", lambda _, ref, *__: built.append(ref))
    for client in reversed(clients[2:]):
        assert isinstance(client.ask(ImageRequest(client.reader)).error, KernelArgumentInvalid)
    assert built == []
    clients[0].ask(ImageRequest(client.reader))


def test_cached_refusal_does_not_grow(world: World, client: Client) -> None:
    world.assisted.reported = infra_env_of(("a;b",))
    errors = [client.ask().error for _ in range(5)]
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors[1:]}) == 1
    assert len({id(error) for error in errors}) == 5
    assert len({str(error) for error in errors}) == 1
