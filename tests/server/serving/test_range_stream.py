"""The range stream: it responds as the request handler would, and no longer once anything has changed."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import SIZE_BYTES, SharedMemoryCoordination
from image_service.core.errors import Forbidden
from image_service.core.images.reference import Reader
from image_service.server.http.cors import Cors
from image_service.server.http.response import Response
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.server.http.reading import body_of, fields_of
from tests.server.serving.asking import Service
from tests.server.snapshots.doubles import MAX_AGE_SECONDS, REF, TTL_SECONDS, WINDOW_SECONDS, World
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import Client, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.server.transport.exchanges.exchange import PreparedResponse, RangeResponder

ADDRESS = "192.0.2.1"
READER = Reader(ADDRESS, None, REF)
REQUEST = ImageRequest(READER, ReadMode.RESUME)
MOMENT = 0.01
MEMORY = memoryview(bytearray(SIZE_BYTES))
COORDINATION = SharedMemoryCoordination(MEMORY, Path("/nonexistent/locks"), Clock())


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        say(made)
        yield made


@pytest.fixture
def service(world: World) -> Service:
    return Service(world)


def ask(service: Service, first: int = 0, last: int = 9, **fields: str) -> PreparedResponse:
    """Return the response to a range, which is sent at once."""
    prepared = service.get(range=f"bytes={first}-{last}", **fields)
    prepared.on_end()
    return prepared


def stream_of(prepared: PreparedResponse) -> RangeResponder:
    assert prepared.ranges is not None
    return prepared.ranges


def respond(
    service: Service, stream: RangeResponder, first: int = 0, last: int = 9
) -> tuple[int, dict[str, str], bytes] | None:
    """Return status, fields and content of a further range; None: the request handler has to respond."""
    message = stream.respond_to_range(first, last, service.world.clock.seconds())
    if message is None:
        return None
    fields, body = message
    return describe(Response(206, fields, body, sum(extent.length for extent in body)))


def pass_second(service: Service) -> None:
    """Let a second pass, and run what runs regularly."""
    service.world.clock.advance(1)
    service.world.images.mounts.unsaved()


def describe(response: Response) -> tuple[int, dict[str, str], bytes]:
    return response.status, fields_of(response), body_of(response)


def test_further_range_equals_the_handlers_response(service: Service) -> None:
    first_response = ask(service, user_agent="httpfs2").response
    size = int(fields_of(first_response)["content-range"].partition("/")[2])
    stream = stream_of(ask(service, user_agent="httpfs2"))
    for first, last in [(0, 0), (5, 99), (4096, 70_000), (size - 7, size + 100), (size - 1, size - 1)]:
        expected = describe(ask(service, first, last, user_agent="httpfs2").response)
        assert respond(service, stream, first, last) == expected


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 400_000)), max_size=8))
def test_any_range_equals_the_handlers_response_or_is_left_to_it(ranges: list[tuple[int, int]]) -> None:
    with make_world() as world:
        service = Service(world)
        stream = stream_of(ask(service))
        for first, last in ranges:
            expected = describe(ask(service, first, last).response)
            found = respond(service, stream, first, last)
            assert found == (expected if expected[0] == 206 else None)


def test_only_remote_images_are_searched_for_absent_bytes(service: Service) -> None:
    stream = stream_of(ask(service))
    assert stream.is_remote, "nothing is known yet"
    respond(service, stream)
    assert not stream.is_remote


def test_further_range_has_the_cors_fields(service: Service) -> None:
    service = attrs.evolve(service, cors=Cors(("https://console.test",)))
    prepared = ask(service, origin="https://console.test")
    message = stream_of(prepared).respond_to_range(0, 9, service.world.clock.seconds())
    assert message is not None
    lines = message[0].splitlines()
    assert b"Access-Control-Allow-Origin: https://console.test" in lines
    assert sorted(lines) == sorted(prepared.response.fields.splitlines())


@pytest.mark.parametrize(
    "fields",
    [{}, {"if_range": '"other"'}, {"if_match": "*"}, {"if_none_match": '"other"'}],
)
def test_response_to_other_requests_has_no_stream(service: Service, fields: dict[str, str]) -> None:
    part = {"range": "bytes=0-9"} if fields else {}
    assert service.get(**part, **fields).ranges is None


def test_stream_ends_with_the_ttl_and_calls_nobody_upstream(service: Service) -> None:
    stream = stream_of(ask(service))
    for _ in range(TTL_SECONDS - 1):
        pass_second(service)
        assert respond(service, stream)
    calls = service.upstream_calls
    service.world.clock.advance(1)
    assert respond(service, stream) is None
    assert service.upstream_calls == calls
    stream = stream_of(ask(service))
    assert service.upstream_calls > calls
    assert respond(service, stream)


def _ttl_passes(service: Service) -> None:
    service.world.clock.advance(TTL_SECONDS)


def _another_reader_is_refused(service: Service) -> None:
    """All readers of one snapshot key share its snapshot."""
    service.world.clock.advance(TTL_SECONDS)
    service.world.assisted.failures["ignition"] = Forbidden("403")
    Client(service.world, "192.0.2.2").ask()


def _the_reader_gets_another_generation(service: Service) -> None:
    """On another connection."""
    service.world.clock.advance(TTL_SECONDS)
    say(service.world, "changed")
    Client(service.world, ADDRESS).whole()


def _the_mounts_window_passes(service: Service) -> None:
    """While other readers keep the snapshot fresh."""
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    Client(service.world, "192.0.2.2").whole()


def _the_base_image_is_superseded(service: Service) -> None:
    for base in set(service.world.catalog.images.values()):
        service.world.images.retention.supersede(base)


def _other_images_take_its_memory(service: Service) -> None:
    Client(service.world, ref=attrs.evolve(REF, architecture="aarch64")).whole()


def _other_mounts_take_its_place(service: Service) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.world.images.mounts.cache, "limit", 1)
        Client(service.world, "192.0.2.2").whole()


def _another_process_changes_the_mount(service: Service) -> None:
    COORDINATION.bump(service.world.archive.mounts.key_of(READER))


def _another_process_changes_the_snapshot(service: Service) -> None:
    version = service.world.images.mounts.find(READER)
    assert version is not None
    assert version.snapshot is not None
    COORDINATION.bump(version.snapshot.stored_key)


CAUSES = [
    _ttl_passes,
    _another_reader_is_refused,
    _the_reader_gets_another_generation,
    _the_mounts_window_passes,
    _the_base_image_is_superseded,
    _other_images_take_its_memory,
    _other_mounts_take_its_place,
    _another_process_changes_the_mount,
    _another_process_changes_the_snapshot,
]


@pytest.mark.parametrize("cause", CAUSES)
def test_stream_ends_with_what_it_depends_on(cause: Callable[[Service], None]) -> None:
    with make_world() as world:
        world.cache_bytes = 1  # room for one image
        world.images = world.make_images(coordination=COORDINATION)
        service = Service(world)
        before = ask(service)
        stream = stream_of(before)
        assert respond(service, stream)
        cause(service)
        cached = world.images.get_cached_image(REQUEST)
        etag = fields_of(before.response)["etag"]
        assert cached is None or cached.representation.image.etag != etag
        assert respond(service, stream) is None


def test_refusal_before_the_ttl_has_passed_ends_the_stream(service: Service) -> None:
    """assisted-service is called for a new mount if the snapshot is old."""
    ask(service)
    rounds, rest = divmod(MAX_AGE_SECONDS, 7)  # so that nothing else is due just then
    for _ in range(rounds):
        service.world.clock.advance(7)
        ask(service)
    service.world.clock.advance(rest - 2 * MOMENT)
    ask(service)
    stream = stream_of(ask(service))
    assert respond(service, stream)
    service.world.assisted.failures["ignition"] = Forbidden("403")
    service.world.clock.advance(3 * MOMENT)
    assert respond(service, stream)
    Client(service.world, "192.0.2.2").ask()
    assert respond(service, stream) is None


def test_time_passing_during_the_lookup_does_not_end_the_stream(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = service.world.clock
    stopped = clock.seconds

    def seconds() -> float:
        clock.rightNow += 1e-6
        return stopped()

    monkeypatch.setattr(clock, "seconds", seconds)
    stream = stream_of(ask(service))
    for _ in range(3):
        assert respond(service, stream)


def test_clock_set_back_invalidates_the_cached_lookup(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new lookup counts the mount among the latest readers, so that it is not the one to be evicted."""
    monkeypatch.setattr(service.world.images.mounts.cache, "limit", 2)
    service.world.clock.advance(10_000)
    stream = stream_of(ask(service))
    assert respond(service, stream)
    Client(service.world, "192.0.2.2").ask()
    service.world.clock.rightNow -= 3600
    assert respond(service, stream)
    Client(service.world, "192.0.2.3").ask()
    assert respond(service, stream)


def test_stream_keeps_no_part_of_the_image(service: Service) -> None:
    """A slice of what is laid over the base may be as large as a range."""
    stream = stream_of(ask(service))
    message = stream.respond_to_range(1, 9, service.world.clock.seconds())
    assert message is not None
    extents = [weakref.ref(extent) for extent in message[1]]
    del message
    assert [extent() for extent in extents] == [None] * len(extents)


def test_further_ranges_keep_the_mount_in_progress(service: Service) -> None:
    stream = stream_of(ask(service))
    other = Client(service.world, "192.0.2.2")
    for _ in range(3 * WINDOW_SECONDS):
        pass_second(service)
        other.whole()  # keeps the snapshot fresh
        assert respond(service, stream)


def test_held_mount_stays_in_progress_until_it_is_released(service: Service) -> None:
    stream = stream_of(ask(service))
    assert respond(service, stream)
    release = stream.hold_mount()
    service.world.clock.advance(10 * WINDOW_SECONDS)
    assert service.world.images.mounts.find(READER) is not None
    release()
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert service.world.images.mounts.find(READER) is None


def test_mount_is_saved_again_while_its_stream_is_read(service: Service) -> None:
    """By the request handler, to which the stream leaves a range whenever that is due."""
    stream = stream_of(ask(service))
    for _ in range(TTL_SECONDS - 1):
        service.world.clock.advance(1)
        if not respond(service, stream):
            break
    else:
        pytest.fail("it was never due")
    assert service.world.images.get_cached_image(REQUEST) is not None
    assert respond(service, stream_of(ask(service)))


def test_unsatisfiable_range_does_not_count_as_a_read(service: Service) -> None:
    stream = stream_of(ask(service))
    assert respond(service, stream, 10**12, 10**12 + 1) is None
    assert respond(service, stream, 5, 4) is None
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert service.world.images.mounts.find(READER) is None
