"""The state of several workers, by queries to doubles of them, on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.app.admin.combined_state import CombinedState
from image_service.core.errors import Unavailable
from image_service.server.processes.process_counts import TIMEOUT_SECONDS
from image_service.server.processes.queries import NO_RESPONSE, Queries
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from image_service.server.admin.state import Page


STATUS = {
    "started_at": "2026-03-04T05:06:07Z",
    "stopping": False,
    "ready": False,
    "connections": 2,
    "requests": 1,
    "upstream": {"answered_at": None, "failed_at": None},
    "streams": [],
}


@attrs.define(eq=False)
class FakeSlot:
    """A slot whose worker responds when the test says so."""

    clock: Clock
    is_serving: bool = True
    sent: list[Any] = attrs.field(factory=list)
    queries: Queries = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.queries = Queries(self.clock)

    def query(self, name: str, *arguments: object) -> Deferred[Any]:
        return self.queries.add(name, self.sent.append, *arguments)

    def send(self, word: str, value: object) -> None:
        self.sent.append([word, value])

    def respond(self, value: object) -> None:
        number, *_ = self.sent.pop()
        self.queries.response_received((number, value))


async def render_metrics() -> Page:
    return b"metrics", "text/plain"


@attrs.define
class FakeBaseUrl:
    """The base URL; any address may be chosen, and one may return."""

    url: str = "http://192.0.2.1"
    returned: str = ""

    async def choose(self, address: str | None) -> None:
        self.url = f"http://{address}"

    def follow(self) -> bool:
        self.url = self.returned or self.url
        return bool(self.returned)


@attrs.define(eq=False)
class World:
    """Three workers."""

    clock: Clock = attrs.field(factory=Clock)
    slots: list[FakeSlot] = attrs.field(init=False)
    is_running: bool = True
    base_url: FakeBaseUrl = attrs.field(factory=FakeBaseUrl)
    state: CombinedState = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots = [FakeSlot(self.clock) for _ in range(3)]
        self.state = CombinedState(
            self.slots,  # type: ignore[arg-type] # a double
            self.base_url,  # type: ignore[arg-type] # same
            render_metrics,
            lambda: self.is_running,
        )

    def start(self, work: Coroutine[Deferred[Any], Any, Any]) -> list[Any]:
        """Start a query; its result is added to the list, its error as text."""
        results: list[Any] = []
        done = Deferred.fromCoroutine(work)
        done.addCallbacks(results.append, lambda failure: results.append(failure.getErrorMessage()))
        return results


@pytest.fixture
def world() -> World:
    return World()


def test_service_is_ready_as_soon_as_one_worker_is(world: World) -> None:
    results = world.start(world.state.unready_reason())
    world.slots[1].respond("base images are not ready yet")
    assert results == []
    world.slots[2].respond("")
    assert results == [""]
    assert world.clock.getDelayedCalls() == []


def test_reason_of_the_first_worker_is_told_if_none_is_ready(world: World) -> None:
    results = world.start(world.state.unready_reason())
    for number in (2, 0, 1):
        world.slots[number].respond(f"reason {number}")
    assert results == ["reason 0"]


def test_workers_that_do_not_respond_are_unready_after_the_timeout(world: World) -> None:
    results = world.start(world.state.unready_reason())
    world.clock.advance(TIMEOUT_SECONDS)
    assert results == [NO_RESPONSE]
    for slot in world.slots:
        slot.respond("")  # too late
    assert results == [NO_RESPONSE]


def test_workers_that_do_not_serve_are_not_asked(world: World) -> None:
    for slot in world.slots:
        slot.is_serving = False
    assert world.start(world.state.unready_reason()) == [NO_RESPONSE]
    assert world.start(world.state.render_images()) == [NO_RESPONSE]
    assert [slot.sent for slot in world.slots] == [[], [], []]


def test_service_that_shuts_down_is_unready_though_workers_still_serve(world: World) -> None:
    world.is_running = False
    assert world.start(world.state.unready_reason()) == ["this service is shutting down"]


def test_images_are_those_of_the_first_worker_that_responds(world: World) -> None:
    results = world.start(world.state.render_images())
    assert [len(slot.sent) for slot in world.slots] == [1, 0, 0]
    world.clock.advance(TIMEOUT_SECONDS)
    world.slots[1].queries.cancel()  # this worker has exited
    world.slots[2].respond("images")
    assert results == ["images"]


def test_family_is_what_the_first_worker_knows(world: World) -> None:
    results = world.start(world.state.find_family("12", "x86_64"))
    assert world.slots[0].sent[0][1:] == ["find_family", "12", "x86_64"]
    world.slots[0].respond("anaconda")
    assert results == ["anaconda"]
    results = world.start(world.state.find_family("12", "x86_64"))
    world.clock.advance(TIMEOUT_SECONDS * 4)
    assert results == []  # the second is asked
    for slot in world.slots[1:]:
        slot.queries.cancel()
    assert results == [None]


@pytest.mark.parametrize(("begun", "expected"), [([False, True], True), ([False, False], False)])
def test_attempt_is_begun_in_each_worker(world: World, begun: list[bool], *, expected: bool) -> None:
    results = world.start(world.state.retry_image("9.6", "x86_64", "full-iso"))
    for slot, is_begun in zip(world.slots, begun, strict=False):
        assert slot.sent[0][1:] == ["retry_image", "9.6", "x86_64", "full-iso"]
        slot.respond(is_begun)
    assert results == []
    world.clock.advance(TIMEOUT_SECONDS)  # the third one does not respond
    assert results == [expected]


def test_log_level_is_set_in_each_worker_also_one_that_starts(world: World) -> None:
    world.slots[2].is_serving = False
    assert world.start(world.state.set_log_level("debug")) == [None]
    assert [slot.sent for slot in world.slots] == [[["log_level", "debug"]]] * 3


def test_chosen_address_is_told_to_each_worker_also_one_that_starts(world: World) -> None:
    world.slots[2].is_serving = False
    results = world.start(world.state.choose_address("192.0.2.2"))
    assert [slot.sent.pop(0) for slot in world.slots] == [["base_url", "http://192.0.2.2"]] * 3
    for slot in world.slots[:2]:
        assert results == []  # before all that serve have it
        slot.respond("")
    assert results == [None]


def test_address_that_returns_is_told_to_each_worker(world: World) -> None:
    assert world.start(world.state.follow_address()) == [None]
    assert [slot.sent for slot in world.slots] == [[], [], []]
    world.base_url.returned = "http://192.0.2.2"
    world.start(world.state.follow_address())
    assert [slot.sent[0] for slot in world.slots] == [["base_url", "http://192.0.2.2"]] * 3


def test_figures_are_exchanged_by_the_first_worker_that_responds(world: World) -> None:
    results = world.start(world.state.exchange_figures("a", {"machines": 1}))
    assert world.slots[0].sent[0][1:] == ["exchange_figures", "a", {"machines": 1}]
    world.slots[0].respond([{"id": "a"}])
    assert results == [[{"id": "a"}]]


def test_status_is_merged_of_the_workers_that_respond(world: World) -> None:
    results = world.start(world.state.describe_status())
    world.slots[0].respond(STATUS)
    world.slots[2].respond({**STATUS, "ready": True})
    world.clock.advance(TIMEOUT_SECONDS)
    (merged,) = results
    assert (merged["ready"], merged["workers"], merged["connections"]) == (True, 2, 4)


def test_status_is_unavailable_if_no_worker_responds(world: World) -> None:
    results = world.start(world.state.describe_status())
    world.clock.advance(TIMEOUT_SECONDS)
    assert results == [NO_RESPONSE]


@ensure_deferred
async def test_responses_belong_to_their_queries_in_any_order(world: World) -> None:
    slot = world.slots[0]
    first, second = slot.query("one"), slot.query("two")
    assert [name for _, name in slot.sent] == ["one", "two"]
    slot.respond("2")
    slot.respond("1")
    assert (await first, await second) == ("1", "2")


@ensure_deferred
async def test_query_to_a_worker_that_exits_fails_at_once(world: World) -> None:
    response = world.slots[0].query("one")
    world.slots[0].queries.cancel()
    with pytest.raises(Unavailable, match=NO_RESPONSE):
        await response
