"""Slots compared with a naive queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.core.extents import Zeros
from image_service.server.http.problem import status_of
from image_service.server.http.response import Response
from image_service.server.transport.admission.slots import (
    ANSWER_SECONDS,
    RETRY_AFTER_SECONDS,
    SLOT_TIMEOUT_SECONDS,
    SMALL_BYTES,
    is_download,
)
from tests.server.transport.admission.waiting import acquire, make_slots
from tests.server.transport.recording_observer import RecordingObserver

if TYPE_CHECKING:
    from image_service.server.transport.admission.slot_queue import Slot

LIMIT, PUBLIC_LIMIT, QUEUE_LENGTH = 4, 3, 3


@attrs.define
class Naive:
    """A naive queue: who holds a slot, who waits until when, and each outcome, by request number."""

    now: float = 0
    who: list[tuple[str, bool]] = attrs.field(factory=list)
    taken: list[int] = attrs.field(factory=list)
    queue: list[tuple[int, float]] = attrs.field(factory=list)
    told: list[tuple[int, bool]] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)

    def ask(self, address: str, waited: float, *, is_public: bool) -> None:
        self.who.append((address, is_public))
        seconds = max(0, min(SLOT_TIMEOUT_SECONDS, ANSWER_SECONDS - waited))
        self.queue.append((len(self.who) - 1, self.now + seconds))
        self.grant()
        if len(self.queue) > QUEUE_LENGTH:
            waiting = Counter(self.who[number] for number, _ in self.queue)
            last = max((waiting[self.who[number]], self.who[number][1], number) for number, _ in self.queue)[
                -1
            ]
            self.refuse([last], "queue-full")

    def grant(self) -> None:
        while len(self.taken) < LIMIT:
            held = Counter(self.who[number][0] for number in self.taken)
            is_public_part_used = sum(self.who[number][1] for number in self.taken) >= PUBLIC_LIMIT
            order = sorted(
                (held[self.who[number][0]], number)
                for number, _ in self.queue
                if not (self.who[number][1] and is_public_part_used)
            )
            if not order:
                return
            self.taken.append(order[0][1])
            self.told.append((order[0][1], True))
            self.leave(order[0][1])

    def leave(self, number: int) -> None:
        self.queue = [(other, until) for other, until in self.queue if other != number]

    def refuse(self, numbers: list[int], reason: str) -> None:
        for number in numbers:
            self.leave(number)
        self.told += [(number, False) for number in numbers]
        self.refused += [reason] * len(numbers)

    def release(self, number: int) -> None:
        self.taken = [other for other in self.taken if other != number]
        self.told += [(other, False) for other, _ in self.queue if other == number]
        self.leave(number)
        self.grant()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.refuse([number for number, until in self.queue if until <= self.now], "queue-wait")


def listen(slot: Slot, number: int, told: list[tuple[int, bool]]) -> None:
    slot.granted.addCallback(lambda granted: told.append((number, granted)))


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("ask"),
                st.sampled_from([0, 0.5, 1.5, 2.5, 3, 10]),
                st.sampled_from("abc"),
                st.booleans(),
            ),
            st.tuples(st.just("release"), st.integers(0, 20)),
            st.tuples(st.just("pass"), st.just(0.5)),
        ),
        max_size=60,
    )
)
def test_slots_are_granted_like_a_naive_queue(
    steps: list[tuple[str, float] | tuple[str, float, str, bool]],
) -> None:
    clock = Clock()
    naive, recorded = Naive(), RecordingObserver()
    slots = make_slots(LIMIT, QUEUE_LENGTH, clock=clock, observer=recorded)
    asked: list[Slot] = []
    told: list[tuple[int, bool]] = []
    for what, value, *who in steps:
        if what == "ask":
            address, is_public = str(who[0]), bool(who[1])
            asked.append(acquire(slots, address, began=clock.seconds() - value, is_public=is_public))
            listen(asked[-1], len(asked) - 1, told)
            naive.ask(address, value, is_public=is_public)
        elif what == "pass":
            clock.advance(value)
            naive.advance(value)
        elif value < len(asked):
            slots.release(asked[int(value)])
            naive.release(int(value))
        assert (slots.acquired, slots.waiting) == (len(naive.taken), len(naive.queue))
        has_check = bool(slots.acquired or slots.waiting)
        assert len(clock.getDelayedCalls()) == slots.waiting + has_check
    # Who is refused in the same moment is so in the order of the timers, which is nobody's concern.
    assert sorted(told) == sorted(naive.told)
    assert [number for number, granted in told if granted] == [
        number for number, granted in naive.told if granted
    ]
    assert recorded.refusals == naive.refused
    for slot in asked:
        slots.release(slot)
    assert (slots.acquired, slots.waiting, clock.getDelayedCalls()) == (0, 0, [])


@pytest.mark.soak
def test_short_downloads_do_not_recurse() -> None:
    """Otherwise a long queue would nest as many calls."""
    slots = make_slots(1, 5000)
    first = acquire(slots)
    order: list[int] = []

    def end(_: object, slot: Slot, number: int) -> None:
        order.append(number)
        slots.release(slot)

    for number in range(5000):
        slot = acquire(slots)
        slot.granted.addCallback(end, slot, number)
    slots.release(first)
    assert order == list(range(5000))
    assert (slots.acquired, slots.waiting) == (0, 0)


def test_refused_clients_that_ask_again_do_not_recurse() -> None:
    """Otherwise pipelined requests of a full queue would nest as many calls."""
    slots = make_slots(1, 2)
    first = acquire(slots, "greedy")
    asked: list[Slot] = []

    def ask_again(granted: object) -> None:
        if not granted and len(asked) < 2000:
            ask()

    def ask() -> None:
        asked.append(acquire(slots, "greedy"))
        asked[-1].granted.addCallback(ask_again)

    ask()
    ask()
    other = acquire(slots, "other")
    assert len(asked) == 2000
    assert not other.granted.called
    for slot in (first, *asked, other):
        slots.release(slot)
    assert (slots.acquired, slots.waiting) == (0, 0)


def test_released_and_reacquired_slot_does_not_overtake_the_queue() -> None:
    slots = make_slots(1, 5)
    first, second, third = acquire(slots), acquire(slots), acquire(slots)
    again: list[Slot] = []

    def ask_again(_: object) -> None:
        slots.release(second)
        again.append(acquire(slots))

    second.granted.addCallback(ask_again)
    slots.release(first)
    assert third.granted.called
    assert not again[0].granted.called
    slots.release(third)
    assert again[0].granted.called


def test_address_that_fills_the_queue_gives_way_to_another() -> None:
    recorded = RecordingObserver()
    slots = make_slots(1, 3, observer=recorded)
    acquire(slots, "greedy")
    waiting = [acquire(slots, "greedy") for _ in range(3)]
    other = acquire(slots, "other")
    assert [slot.granted.called for slot in (*waiting, other)] == [False, False, True, False]
    assert recorded.refusals == ["queue-full"]


def test_refusal_names_the_limit_and_retry_after() -> None:
    refusal = make_slots(17).refusal()
    assert (status_of(refusal), refusal.retry_after_seconds) == (503, RETRY_AFTER_SECONDS)
    assert "limit of 17 concurrent downloads" in refusal.detail


@pytest.mark.parametrize(
    ("length", "has_body", "expected"),
    [(SMALL_BYTES, True, False), (SMALL_BYTES + 1, True, True), (SMALL_BYTES + 1, False, False)],
)
def test_only_large_bodies_need_a_slot(length: int, has_body: object, expected: object) -> None:
    body = (Zeros(length),) if has_body else ()
    assert is_download(Response(200, b"", body, length)) is expected
