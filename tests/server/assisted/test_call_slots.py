"""The slots for calls to assisted-service, compared with a naive model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from image_service.core.errors import NotFound, UpstreamQueueFull
from image_service.server.assisted import call_slots
from image_service.server.assisted.call_slots import WAIT_SECONDS, CallClass, CallSlots, reserve
from image_service.server.assisted.caller import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REVALIDATION, ACCEPTED = CallClass.REVALIDATION, CallClass.ACCEPTED
UNPROVEN, ANONYMOUS = CallClass.UNPROVEN, CallClass.ANONYMOUS
LIMIT = 8  # two for revalidations, two for accepted credentials, four for all


@attrs.define(eq=False)
class Asked:
    """A call: it goes on until it is ended."""

    slots: CallSlots
    caller: Caller
    of: CallClass
    ending: Deferred[None] = attrs.field(factory=Deferred)
    has_begun: bool = False
    error: BaseException | None = None
    done: Deferred[None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.done = Deferred.fromCoroutine(self._hold())

    @property
    def is_running(self) -> bool:
        return self.has_begun and not self.ending.called

    @property
    def is_waiting(self) -> bool:
        return not (self.has_begun or self.done.called)

    async def _hold(self) -> None:
        try:
            await self.slots.run(self.caller, self.of, self._begin)
        except (UpstreamQueueFull, CancelledError, NotFound) as error:
            self.error = error

    async def _begin(self) -> None:
        self.has_begun = True
        await self.ending

    def end(self) -> None:
        self.ending.callback(None)

    def fail(self) -> None:
        self.ending.errback(NotFound("any"))

    def cancel(self) -> None:
        self.done.cancel()


@attrs.define(eq=False)
class Setting:
    """Slots, and a clock that the test advances."""

    limit: int = LIMIT
    clock: Clock = attrs.field(factory=Clock)
    refusals: list[None] = attrs.field(factory=list)
    slots: CallSlots = attrs.field(init=False)
    calls: list[Asked] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.slots = CallSlots(self.limit, self.clock, lambda: self.refusals.append(None))

    def ask(self, of: CallClass, address: str = "one", caller: Caller | None = None) -> Asked:
        self.calls.append(Asked(self.slots, caller or Caller(address, self.clock.seconds()), of))
        return self.calls[-1]

    def ask_often(self, count: int, of: CallClass, address: str = "one") -> list[Asked]:
        return [self.ask(of, address) for _ in range(count)]

    def end_all(self) -> None:
        """End every call, after which nothing of any is left."""
        assert len(self.clock.getDelayedCalls()) == len(self.slots.waiting())
        self.slots.close()
        for call in self.calls:
            if call.is_running:
                call.end()
        assert not [*self.slots.running(), *self.slots.waiting(), *self.clock.getDelayedCalls()]


@pytest.fixture
def setting() -> Iterator[Setting]:
    made = Setting()
    yield made
    made.end_all()


def running(calls: list[Asked]) -> int:
    return sum(call.is_running for call in calls)


@pytest.mark.parametrize(
    ("limit", "revalidations", "accepted"),
    [(1, 0, 0), (2, 1, 0), (3, 1, 1), (4, 1, 1), (8, 2, 2), (16, 4, 3), (32, 8, 6), (100, 25, 19)],
)
def test_a_quarter_is_reserved_and_one_slot_is_left_for_all(
    limit: int, revalidations: int, accepted: int
) -> None:
    assert reserve(limit) == {REVALIDATION: revalidations, ACCEPTED: accepted}
    assert limit - revalidations - accepted >= 1


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("of", CallClass)
def test_one_client_takes_all_that_is_not_reserved_for_others(limit: int, of: CallClass) -> None:
    setting = Setting(limit)
    calls = setting.ask_often(limit + 1, of)
    others = sum(count for reserved, count in reserve(limit).items() if reserved is not of)
    assert running(calls) == limit - others
    setting.end_all()


@pytest.mark.parametrize("flood", [UNPROVEN, ANONYMOUS])
def test_flood_leaves_what_is_reserved(setting: Setting, flood: CallClass) -> None:
    for number in range(50):
        setting.ask_often(2, flood, f"address {number}")
    assert running(setting.ask_often(3, REVALIDATION)) == 2
    assert running(setting.ask_often(3, ACCEPTED)) == 2
    assert len(setting.slots.running()) == LIMIT


def test_flood_of_revalidations_leaves_what_is_reserved(setting: Setting) -> None:
    setting.ask_often(50, REVALIDATION)
    assert running(setting.ask_often(3, ACCEPTED)) == 2


def test_freed_slot_goes_to_the_class_with_the_fewest_shared_slots(setting: Setting) -> None:
    flood = [setting.ask(ANONYMOUS, f"address {number}") for number in range(50)]
    others = setting.ask_often(5, UNPROVEN)
    for number in range(4):
        flood[number].end()
    assert (running(flood), running(others)) == (2, 2)
    assert running(setting.ask_often(5, ACCEPTED)) == 2, "what is reserved does not count"


def test_freed_slot_goes_to_the_address_with_the_fewest_calls(setting: Setting) -> None:
    flood = setting.ask_often(20, ANONYMOUS, "flood")
    others = setting.ask_often(3, ANONYMOUS, "other")
    for count in (1, 2):
        flood[count].end()
        assert running(others) == count
    flood[3].end()
    assert (running(flood), running(others)) == (2, 2), "then they take turns, first come first served"
    assert flood[4].is_running


def test_calls_of_a_request_go_together(setting: Setting) -> None:
    flood = setting.ask_often(4, ANONYMOUS, "flood")
    caller = Caller("other", 0)
    image = [setting.ask(ANONYMOUS, caller=caller) for _ in range(3)]
    flood += setting.ask_often(4, ANONYMOUS, "third")
    for count in range(3):
        flood[count].end()
        assert running(image) == count + 1


def test_wait_is_limited_from_the_request_on(setting: Setting) -> None:
    setting.ask_often(4, ANONYMOUS)
    caller = Caller("other", 0)
    setting.clock.advance(WAIT_SECONDS / 2)
    late, latest = setting.ask(ANONYMOUS, caller=caller), setting.ask(ANONYMOUS)
    setting.clock.advance(WAIT_SECONDS / 2 - 0.01)
    assert late.is_waiting
    setting.clock.advance(0.01)
    assert isinstance(late.error, UpstreamQueueFull)
    assert late.error.retry_after_seconds
    assert latest.is_waiting
    too_late = setting.ask(ANONYMOUS, caller=caller)
    assert isinstance(too_late.error, UpstreamQueueFull)
    assert len(setting.refusals) == 1


def test_free_slot_is_granted_however_old_the_request_is(setting: Setting) -> None:
    setting.clock.advance(10 * WAIT_SECONDS)
    assert setting.ask(ANONYMOUS, caller=Caller("one", 0)).is_running


def test_full_queue_refuses_the_longest_client(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_slots, "MAX_WAITING", 6)
    setting.ask_often(4, ANONYMOUS)
    flood = setting.ask_often(7, ANONYMOUS, "flood")
    assert [type(call.error) for call in flood] == [type(None)] * 6 + [UpstreamQueueFull]
    other = setting.ask_often(4, ANONYMOUS, "other")
    assert [call.is_waiting for call in other] == [True, True, True, False]
    assert [call.is_waiting for call in flood] == [True] * 3 + [False] * 4
    assert setting.ask(UNPROVEN, "flood").is_waiting, "each class has a queue of its own"
    assert len(setting.refusals) == 5


def test_request_in_the_full_queue_adds_its_other_calls(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_slots, "MAX_WAITING", 2)
    setting.ask_often(4, ANONYMOUS)
    caller = Caller("one", 0)
    assert all(setting.ask(ANONYMOUS, caller=caller).is_waiting for _ in range(3))
    assert setting.ask(ANONYMOUS).error


def test_refused_request_is_recorded_once(setting: Setting) -> None:
    setting.ask_often(4, ANONYMOUS)
    caller = Caller("one", 0)
    calls = [setting.ask(ANONYMOUS, caller=caller) for _ in range(3)]
    setting.clock.advance(WAIT_SECONDS)
    assert all(isinstance(call.error, UpstreamQueueFull) for call in calls)
    assert len(setting.refusals) == 1


def test_close_cancels_what_waits(setting: Setting) -> None:
    calls = setting.ask_often(6, ANONYMOUS)
    setting.slots.close()
    assert [type(call.error) for call in calls[4:]] == [CancelledError] * 2
    assert running(calls) == 4
    assert not setting.refusals


def test_short_calls_in_a_row_do_not_nest(setting: Setting) -> None:
    held = setting.ask_often(4, ANONYMOUS)
    short = setting.ask_often(250, ANONYMOUS)
    for call in short:
        call.end()  # each ends as soon as it has begun
    held[0].end()
    assert all(call.done.called and call.error is None for call in short)


def test_abandoned_call_holds_its_slot_to_its_end(setting: Setting) -> None:
    first, *others = setting.ask_often(5, ANONYMOUS)
    first.cancel()
    assert isinstance(first.error, CancelledError)
    assert not others[3].is_running
    first.fail()
    assert others[3].is_running


class Comparison(RuleBasedStateMachine):
    """Random steps; after each, the slots are granted as a model of lists grants them."""

    def __init__(self) -> None:
        super().__init__()
        self.setting = Setting(limit=6)
        self.reserved = reserve(6)
        self.requests: list[Caller] = []
        self.calls = self.setting.calls
        self.started: set[Caller] = set()
        self.expected: list[Asked] = []  # those that run, by the model

    def grant(self) -> None:
        """Give free slots as the module's docstring says."""
        self.expected = [call for call in self.expected if not call.ending.called]
        while True:
            able = [call for call in self.calls if self.waits(call) and self.has_room(call.of)]
            if not able:
                return
            able = [call for call in able if call.caller in self.started] or able
            able = self.least(able, lambda call: self.beyond_reserve(call.of))
            chosen = self.least(able, self.held_by)[0]
            self.expected.append(chosen)
            self.started.add(chosen.caller)

    def waits(self, call: Asked) -> bool:
        return not (call.done.called or call.ending.called or call in self.expected)

    def least(self, calls: list[Asked], number: Callable[[Asked], int]) -> list[Asked]:
        return [call for call in calls if number(call) == min(map(number, calls))]

    def beyond_reserve(self, of: CallClass) -> int:
        return sum(other.of is of for other in self.expected) - self.reserved.get(of, 0)

    def held_by(self, call: Asked) -> int:
        client = (call.of, call.caller.address)
        return sum((other.of, other.caller.address) == client for other in self.expected)

    def has_room(self, of: CallClass) -> bool:
        """Put each running call into a slot of its class, else into one of all."""
        free, shared = dict(self.reserved), 6 - sum(self.reserved.values())
        for each in [*(call.of for call in self.expected), of]:
            if free.get(each, 0):
                free[each] -= 1
            else:
                shared -= 1
        return shared >= 0

    @rule(of=st.sampled_from(CallClass), address=st.sampled_from("ab"), is_new=st.booleans(), data=st.data())
    def ask(self, of: CallClass, address: str, *, is_new: bool, data: st.DataObject) -> None:
        if is_new or not self.requests:
            self.requests.append(Caller(address, self.setting.clock.seconds()))
            caller = self.requests[-1]
        else:
            caller = data.draw(st.sampled_from(self.requests))
        self.setting.ask(of, caller=caller)
        self.grant()

    @precondition(lambda self: any(call.is_running for call in self.calls))
    @rule(data=st.data(), step=st.sampled_from([Asked.end, Asked.fail, Asked.cancel]))
    def stop(self, data: st.DataObject, step: Callable[[Asked], None]) -> None:
        step(data.draw(st.sampled_from([call for call in self.calls if call.is_running])))
        self.grant()

    @precondition(lambda self: any(call.is_waiting for call in self.calls))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([call for call in self.calls if call.is_waiting])).cancel()
        self.grant()

    @rule(seconds=st.sampled_from([0.1, 1.0, WAIT_SECONDS]))
    def advance(self, seconds: float) -> None:
        self.setting.clock.advance(seconds)
        self.grant()

    @invariant()
    def slots_are_granted_as_by_the_model(self) -> None:
        assert [call for call in self.calls if call.is_running] == [
            call for call in self.calls if call in self.expected
        ]

    @invariant()
    def no_slot_is_lost(self) -> None:
        assert sorted(self.setting.slots.running()) == sorted(c.of.value for c in self.calls if c.is_running)
        assert self.setting.slots.waiting() == [call.of.value for call in self.calls if call.is_waiting]
        assert len(self.setting.clock.getDelayedCalls()) == len(self.setting.slots.waiting())

    @invariant()
    def nobody_waits_too_long(self) -> None:
        now = self.setting.clock.seconds()
        assert all(now < call.caller.came_at + WAIT_SECONDS for call in self.calls if call.is_waiting)

    def teardown(self) -> None:
        self.setting.end_all()


@pytest.mark.hypothesis
def test_any_calls_are_as_in_the_comparison() -> None:
    run_state_machine_as_test(Comparison, settings=settings(stateful_step_count=40))
