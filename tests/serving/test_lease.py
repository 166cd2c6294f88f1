"""Leases: a further range is answered as the application would, and by it as soon as anything has changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.concurrency.coordination import SIZE_BYTES, SharedMemoryCoordination
from image_service.errors import Forbidden
from image_service.http.cors import Cors
from image_service.images.reference import Reader
from image_service.snapshots.versions import ImageRequest, ReadMode
from tests.http.reading import body_of, fields_of
from tests.serving.asking import Service
from tests.snapshots.doubles import MAX_AGE_SECONDS, REF, TTL_SECONDS, WINDOW_SECONDS, World
from tests.snapshots.doubles import world as make_world
from tests.snapshots.mounting import Client, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.transport.exchange import Answer, Lease

ADDRESS = "192.0.2.1"
READER = Reader(ADDRESS, None, REF)
WANT = ImageRequest(READER, ReadMode.CONTINUING)
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


def ask(service: Service, first: int = 0, last: int = 9, **fields: str) -> Answer:
    """A range, whose answer is over at once."""
    answer = service.get(range=f"bytes={first}-{last}", **fields)
    answer.ended()
    return answer


def lease_of(answer: Answer) -> Lease:
    assert answer.lease is not None
    return answer.lease


def further_of(service: Service, lease: Lease, first: int = 0, last: int = 9) -> Answer | None:
    return lease.answer(first, last, service.world.clock.seconds())


def is_good(service: Service, lease: Lease) -> bool:
    answer = further_of(service, lease)
    if answer is not None:
        answer.ended()
    return answer is not None


def pass_second(service: Service) -> None:
    """Let a second go by, and what is done regularly."""
    service.world.clock.advance(1)
    list(service.world.images.mounts.to_save())


def described(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    return answer.response.status, fields_of(answer.response), body_of(answer.response)


def test_a_further_range_is_answered_as_the_application_would(service: Service) -> None:
    answer = ask(service, user_agent="httpfs2")
    size = int(fields_of(answer.response)["content-range"].partition("/")[2])
    for first, last in [(0, 0), (5, 99), (4096, 70_000), (size - 7, size + 100), (size - 1, size - 1)]:
        expected, lease = ask(service, first, last, user_agent="httpfs2"), lease_of(answer)
        further = further_of(service, lease, first, last)
        assert further is not None
        assert described(further) == described(expected)
        assert further.subject == expected.subject
        assert further.lease is lease
        further.ended()


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 400_000)), max_size=8))
def test_so_is_every_range_that_there_is(ranges: list[tuple[int, int]]) -> None:
    with make_world() as world:
        service = Service(world)
        lease = lease_of(ask(service))
        for first, last in ranges:
            expected, further = ask(service, first, last), further_of(service, lease, first, last)
            if further is None:
                assert expected.response.status in {200, 416}, "it is no range of the image"
            else:
                assert described(further) == described(expected)
                further.ended()


def test_pages_of_other_origins_may_read_it_too(service: Service) -> None:
    service = attrs.evolve(service, cors=Cors(("https://console.test",)))
    answer = ask(service, origin="https://console.test")
    further = further_of(service, lease_of(answer))
    assert further is not None
    lines = further.response.fields.splitlines()
    assert b"Access-Control-Allow-Origin: https://console.test" in lines
    assert sorted(lines) == sorted(answer.response.fields.splitlines())


@pytest.mark.parametrize(
    "fields",
    [{}, {"if_range": '"other"'}, {"if_match": "*"}, {"if_none_match": '"other"'}],
)
def test_only_a_range_without_a_validator_has_one(service: Service, fields: dict[str, str]) -> None:
    part = {"range": "bytes=0-9"} if fields else {}
    assert service.get(**part, **fields).lease is None


def test_it_lasts_as_long_as_what_is_pinned(service: Service) -> None:
    lease = lease_of(ask(service))
    for _ in range(TTL_SECONDS - 1):
        pass_second(service)
        assert is_good(service, lease)
    asked = service.upstream_calls
    service.world.clock.advance(1)
    assert not is_good(service, lease)
    assert service.upstream_calls == asked
    lease = lease_of(ask(service))
    assert service.upstream_calls > asked
    assert is_good(service, lease)


def _ttl_passes(service: Service) -> None:
    service.world.clock.advance(TTL_SECONDS)


def _another_reader_hears_that_it_may_not_see_it(service: Service) -> None:
    """All readers of one question share what is pinned."""
    service.world.clock.advance(TTL_SECONDS)
    service.world.assisted.failures["ignition"] = Forbidden("403")
    Client(service.world, "192.0.2.2").ask()


def _the_reader_takes_the_whole_of_another_generation(service: Service) -> None:
    """On another connection, or after a change of its own."""
    service.world.clock.advance(TTL_SECONDS)
    say(service.world, "changed")
    Client(service.world, ADDRESS).whole()


def _the_mount_s_window_passes(service: Service) -> None:
    """While other readers keep the snapshot fresh."""
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    Client(service.world, "192.0.2.2").whole()


def _the_base_image_is_superseded(service: Service) -> None:
    for base in set(service.world.catalog.images.values()):
        service.world.images.supersede(base)


def _other_images_take_the_room(service: Service) -> None:
    service.world.images._composed._limit_bytes = 1
    Client(service.world, ref=attrs.evolve(REF, architecture="aarch64")).whole()


def _other_mounts_take_the_room(service: Service) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("image_service.snapshots.mounts.MAX_MOUNTS", 1)
        Client(service.world, "192.0.2.2").whole()


def _another_process_moves_the_reader_on(service: Service) -> None:
    service.world.images.mounts.renew(READER)


def _another_process_changes_what_is_pinned(service: Service) -> None:
    version = service.world.images.mounts.find(READER)
    assert version is not None
    assert version.snapshot is not None
    COORDINATION.bump(version.snapshot.key)


CAUSES = [
    _ttl_passes,
    _another_reader_hears_that_it_may_not_see_it,
    _the_reader_takes_the_whole_of_another_generation,
    _the_mount_s_window_passes,
    _the_base_image_is_superseded,
    _other_images_take_the_room,
    _other_mounts_take_the_room,
    _another_process_moves_the_reader_on,
    _another_process_changes_what_is_pinned,
]


@pytest.mark.parametrize("cause", CAUSES)
def test_it_is_over_with_what_it_rests_on(cause: Callable[[Service], None]) -> None:
    with make_world() as world:
        world.images = world.make_images(coordination=COORDINATION)
        service = Service(world)
        before = ask(service)
        lease = lease_of(before)
        assert is_good(service, lease)
        cause(service)
        at_once = world.images.at_once(WANT)
        etag = fields_of(before.response)["etag"]
        assert at_once is None or at_once.representation.image.etag != etag
        assert not is_good(service, lease)


def test_it_is_over_at_once_where_assisted_service_refuses_before_the_ttl_has_passed(
    service: Service,
) -> None:
    """Which it may, where it is asked for a new mount because the snapshot is old."""
    ask(service)
    rounds, rest = divmod(MAX_AGE_SECONDS, 7)  # so that nothing else is due just then
    for _ in range(rounds):
        service.world.clock.advance(7)
        ask(service)
    service.world.clock.advance(rest - 2 * MOMENT)
    ask(service)
    lease = lease_of(ask(service))
    assert is_good(service, lease)
    service.world.assisted.failures["ignition"] = Forbidden("403")
    service.world.clock.advance(3 * MOMENT)
    assert is_good(service, lease)
    Client(service.world, "192.0.2.2").ask()
    assert not is_good(service, lease)


def test_time_passes_while_it_is_looked_at(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks at a real clock."""
    clock = service.world.clock
    stopped = clock.seconds

    def seconds() -> float:
        clock.rightNow += 1e-6
        return stopped()

    monkeypatch.setattr(clock, "seconds", seconds)
    lease = lease_of(ask(service))
    for _ in range(3):
        assert is_good(service, lease)


def test_a_clock_that_is_set_back_makes_it_look_again(service: Service) -> None:
    service.world.clock.advance(10_000)
    lease = lease_of(ask(service))
    assert is_good(service, lease)
    looked = Mock(wraps=service.world.images.hold)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.world.images, "hold", looked)
        is_good(service, lease)
        assert not looked.called
        service.world.clock.rightNow -= 3600
        is_good(service, lease)
        assert looked.called


def test_it_keeps_nothing_of_the_image(service: Service) -> None:
    """A slice of what was laid over it may be as large as a range."""
    lease = lease_of(ask(service))
    further = further_of(service, lease)
    assert further is not None
    assert further.response.body
    further.ended()
    assert not further.response.body


def test_its_ranges_keep_the_mount_in_progress(service: Service) -> None:
    lease = lease_of(ask(service))
    other = Client(service.world, "192.0.2.2")
    for _ in range(3 * WINDOW_SECONDS):
        pass_second(service)
        other.whole()  # which keeps what is pinned fresh
        assert is_good(service, lease)


def test_so_does_an_answer_that_is_on_its_way(service: Service) -> None:
    lease = lease_of(ask(service))
    further = further_of(service, lease)
    assert further is not None
    lease.keep_sending()
    service.world.clock.advance(10 * WINDOW_SECONDS)
    assert service.world.images.mounts.find(READER) is not None
    further.ended()
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert service.world.images.mounts.find(READER) is None


def test_a_mount_is_saved_again_and_again(service: Service) -> None:
    """By the application, which is asked whenever that is due."""
    lease = lease_of(ask(service))
    for _ in range(TTL_SECONDS - 1):
        service.world.clock.advance(1)
        if not is_good(service, lease):
            break
    else:
        pytest.fail("it was never due")
    assert service.world.images.at_once(WANT) is not None
    assert is_good(service, lease_of(ask(service)))


def test_nothing_is_begun_where_there_is_no_such_range(service: Service) -> None:
    lease = lease_of(ask(service))
    assert further_of(service, lease, 10**12, 10**12 + 1) is None
    assert further_of(service, lease, 5, 4) is None
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert service.world.images.mounts.find(READER) is None
