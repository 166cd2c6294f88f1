"""Slots compared with a naive queue."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.http.problem import status_of
from image_service.http.response import Response
from image_service.images.extents import Zeros
from image_service.transport.admission.counts import Counts
from image_service.transport.admission.slot_pool import LocalSlotPool
from image_service.transport.admission.slots import (
    ANSWER_SECONDS,
    RETRY_AFTER_SECONDS,
    SLOT_TIMEOUT_SECONDS,
    SMALL_BYTES,
    Slot,
    Slots,
    is_download,
)
from tests.transport.null_observer import NULL_OBSERVER
from tests.transport.recording_observer import RecordingObserver

LIMIT, QUEUE_LENGTH = 2, 3


@attrs.define
class Naive:
    """A naive queue: who holds a slot, who waits until when, and each outcome, by request number."""

    now: float = 0
    taken: list[int] = attrs.field(factory=list)
    queue: list[tuple[int, float]] = attrs.field(factory=list)
    told: list[tuple[int, bool]] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)

    def ask(self, number: int, waited: float) -> None:
        patience = min(SLOT_TIMEOUT_SECONDS, ANSWER_SECONDS - waited)
        if len(self.taken) < LIMIT:
            self.grant(number)
        elif len(self.queue) < QUEUE_LENGTH and patience > 0:
            self.queue.append((number, self.now + patience))
        else:
            self.refuse(
                [number],
                "queue-wait" if len(self.queue) < QUEUE_LENGTH else "queue-full",
            )

    def grant(self, number: int) -> None:
        self.taken.append(number)
        self.told.append((number, True))

    def refuse(self, numbers: list[int], reason: str) -> None:
        self.told += [(number, False) for number in numbers]
        self.refused += [reason] * len(numbers)

    def release(self, number: int) -> None:
        self.taken = [other for other in self.taken if other != number]
        self.told += [(other, False) for other, _ in self.queue if other == number]
        self.queue = [(other, until) for other, until in self.queue if other != number]
        while self.queue and len(self.taken) < LIMIT:
            self.grant(self.queue.pop(0)[0])

    def advance(self, seconds: float) -> None:
        self.now += seconds
        over = [number for number, until in self.queue if until <= self.now]
        self.queue = [(number, until) for number, until in self.queue if until > self.now]
        self.refuse(over, "queue-wait")


def listen(slot: Slot, number: int, told: list[tuple[int, bool]]) -> None:
    slot.granted.addCallback(lambda granted: told.append((number, granted)))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from([0, 0.5, 1.5, 2.5, 3, 10])),
            st.tuples(st.just("release"), st.integers(0, 20)),
            st.tuples(st.just("pass"), st.just(0.5)),
        ),
        max_size=60,
    )
)
def test_slots_are_granted_like_a_naive_queue(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    naive, recorded = Naive(), RecordingObserver()
    slots = Slots(LocalSlotPool(LIMIT, Counts()), QUEUE_LENGTH, SLOT_TIMEOUT_SECONDS, clock, recorded)
    asked: list[Slot] = []
    told: list[tuple[int, bool]] = []
    for what, value in steps:
        if what == "ask":
            asked.append(slots.acquire(clock.seconds() - value))
            listen(asked[-1], len(asked) - 1, told)
            naive.ask(len(asked) - 1, value)
        elif what == "pass":
            clock.advance(value)
            naive.advance(value)
        elif value < len(asked):
            slots.release(asked[int(value)])
            naive.release(int(value))
        assert (slots.acquired, slots.waiting) == (len(naive.taken), len(naive.queue))
        assert len(clock.getDelayedCalls()) == slots.waiting
    # Who is refused in the same moment is so in the order of the timers, which is nobody's concern.
    assert sorted(told) == sorted(naive.told)
    assert [number for number, granted in told if granted] == [
        number for number, granted in naive.told if granted
    ]
    assert recorded.refusals == naive.refused
    for slot in asked:
        slots.release(slot)
    assert (slots.acquired, slots.waiting, clock.getDelayedCalls()) == (0, 0, [])


def test_short_downloads_do_not_recurse() -> None:
    """Otherwise a long queue would nest as many calls."""
    slots = Slots(LocalSlotPool(1, Counts()), 5000, SLOT_TIMEOUT_SECONDS, Clock(), NULL_OBSERVER)
    first = slots.acquire(0)
    order: list[int] = []

    def end(_: object, slot: Slot, number: int) -> None:
        order.append(number)
        slots.release(slot)

    for number in range(5000):
        slot = slots.acquire(0)
        slot.granted.addCallback(end, slot, number)
    slots.release(first)
    assert order == list(range(5000))
    assert (slots.acquired, slots.waiting) == (0, 0)


def test_released_and_reacquired_slot_does_not_overtake_the_queue() -> None:
    slots = Slots(LocalSlotPool(1, Counts()), 5, SLOT_TIMEOUT_SECONDS, Clock(), NULL_OBSERVER)
    first, second, third = slots.acquire(0), slots.acquire(0), slots.acquire(0)
    again: list[Slot] = []

    def ask_again(_: object) -> None:
        slots.release(second)
        again.append(slots.acquire(0))

    second.granted.addCallback(ask_again)
    slots.release(first)
    assert third.granted.called
    assert not again[0].granted.called
    slots.release(third)
    assert again[0].granted.called


def test_refusal_names_the_limit_and_retry_after() -> None:
    refusal = Slots(LocalSlotPool(17, Counts()), 0, SLOT_TIMEOUT_SECONDS, Clock(), NULL_OBSERVER).refusal()
    assert (status_of(refusal), refusal.retry_after_seconds) == (503, RETRY_AFTER_SECONDS)
    assert "limit of 17 concurrent downloads" in refusal.detail


@pytest.mark.parametrize(
    ("length", "has_body", "expected"),
    [(SMALL_BYTES, True, False), (SMALL_BYTES + 1, True, True), (SMALL_BYTES + 1, False, False)],
)
def test_only_large_bodies_need_a_slot(length: int, has_body: object, expected: object) -> None:
    body = (Zeros(length),) if has_body else ()
    assert is_download(Response(200, b"", body, length)) is expected
