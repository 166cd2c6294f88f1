from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.server.transport.deadline import Deadline


@attrs.define
class Timed:
    """A deadline on a clock of its own, and when it passed."""

    clock: Clock = attrs.field(factory=Clock)
    passed: list[float] = attrs.field(factory=list)

    def deadline(self) -> Deadline:
        return Deadline(self.clock, lambda: self.passed.append(self.clock.seconds()))


def test_deadline_passes_once_and_is_then_unset() -> None:
    timed = Timed()
    timed.deadline().set(5)
    timed.clock.pump([4.5, 0.4])
    assert timed.passed == []
    timed.clock.pump([0.1, 100])
    assert timed.passed == [5]
    assert timed.clock.getDelayedCalls() == []


def test_moving_a_deadline_later_starts_no_timer() -> None:
    timed = Timed()
    deadline = timed.deadline()
    deadline.set(5)
    (timer,) = timed.clock.getDelayedCalls()
    for _ in range(50):
        timed.clock.advance(0.08)
        deadline.set(5)
        assert timed.clock.getDelayedCalls() == [timer]
        assert timer.getTime() == 5, "the reactor's heap is not touched"
    timed.clock.pump([0.5] * 20)
    assert timed.passed == [pytest.approx(9)]


def test_moving_a_deadline_earlier_takes_effect() -> None:
    timed = Timed()
    deadline = timed.deadline()
    deadline.set(60)
    deadline.set(5)
    timed.clock.advance(5)
    assert timed.passed == [5]
    timed.clock.advance(100)
    assert timed.passed == [5]


def test_deadline_does_not_pass_early() -> None:
    timed = Timed()
    deadline = timed.deadline()
    deadline.set(5)
    timed.clock.advance(4.5)
    deadline.set(1)
    timed.clock.advance(0.75)
    assert timed.passed == []
    timed.clock.advance(0.25)
    assert timed.passed == [5.5]


def test_cleared_deadline_does_not_pass_until_set_again() -> None:
    timed = Timed()
    deadline = timed.deadline()
    deadline.set(5)
    deadline.clear()
    timed.clock.advance(100)
    assert timed.passed == []
    deadline.set(5)
    deadline.clear()
    deadline.set(7)
    timed.clock.pump([5, 2])
    assert timed.passed == [107]


def test_canceled_deadline_leaves_no_timer() -> None:
    timed = Timed()
    deadline = timed.deadline()
    deadline.cancel()
    deadline.set(5)
    deadline.cancel()
    deadline.cancel()
    assert timed.clock.getDelayedCalls() == []
    deadline.set(5)
    timed.clock.advance(5)
    deadline.cancel()
    assert timed.passed == [5]


def test_deadline_may_be_set_from_its_own_callback() -> None:
    clock, passed = Clock(), list[float]()

    def expired() -> None:
        passed.append(clock.seconds())
        if len(passed) < 3:
            deadline.set(10)

    deadline = Deadline(clock, expired)
    deadline.set(10)
    clock.pump([10] * 5)
    assert passed == [10, 20, 30]


def test_moving_a_deadline_does_not_touch_the_reactor() -> None:
    clock = Clock()
    deadline = Deadline(clock, lambda: None)
    deadline.set(5)
    (timer,) = clock.getDelayedCalls()
    for _ in range(1000):
        clock.advance(0.001)
        deadline.clear()
        deadline.set(60)
        deadline.set(5)
    assert clock.getDelayedCalls() == [timer]
    assert timer.getTime() == 5


steps = st.lists(
    st.tuples(st.just("set"), st.integers(1, 20))
    | st.tuples(st.just("wait"), st.integers(1, 20))
    | st.tuples(st.sampled_from(["clear", "cancel"]), st.just(0)),
    max_size=30,
)


@given(steps)
def test_deadline_fires_when_a_naive_timer_would(sequence: list[tuple[str, int]]) -> None:
    timed = Timed()
    deadline = timed.deadline()
    due: float | None = None
    expected: list[float] = []
    for step, seconds in [*sequence, ("wait", 20)]:
        if step == "wait":
            for _ in range(seconds):
                timed.clock.advance(1)
                if due == timed.clock.seconds():
                    expected.append(due)
                    due = None
        elif step == "set":
            deadline.set(seconds)
            due = timed.clock.seconds() + seconds
        else:
            getattr(deadline, step)()
            due = None
        assert timed.passed == expected
        assert len(timed.clock.getDelayedCalls()) <= 1
    deadline.cancel()
    assert timed.clock.getDelayedCalls() == []
