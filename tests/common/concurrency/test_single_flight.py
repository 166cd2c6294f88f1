from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.common.concurrency.single_flight import SingleFlight, shielded
from image_service.core.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import LoggedFailures


@attrs.define
class Attempts:
    """Attempts that go on until the test ends them."""

    started: list[Deferred[str]] = attrs.field(factory=list)

    async def start(self) -> str:
        attempt: Deferred[str] = Deferred()
        self.started.append(attempt)
        return await attempt


def outcome_of(waiter: Deferred[str]) -> list[object]:
    """Where a waiter's value or exception will be."""
    found: list[object] = []
    waiter.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found


def test_callers_of_one_key_share_one_attempt() -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    outcomes = [outcome_of(flight.join("a", attempts.start)) for _ in range(200)]
    assert len(attempts.started) == 1
    assert outcomes == [[]] * 200
    attempts.started[0].callback("value")
    assert outcomes == [["value"]] * 200


def test_keys_do_not_wait_for_each_other() -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    one, other = outcome_of(flight.join("a", attempts.start)), outcome_of(flight.join("b", attempts.start))
    attempts.started[1].callback("b's")
    assert (one, other) == ([], ["b's"])
    attempts.started[0].callback("a's")
    assert one == ["a's"]


def test_caller_after_the_end_starts_another_attempt() -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    for number in range(3):
        outcome = outcome_of(flight.join("a", attempts.start))
        attempts.started[number].callback(str(number))
        assert outcome == [str(number)]


def test_failure_is_shared_and_not_cached() -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    outcomes = [outcome_of(flight.join("a", attempts.start)) for _ in range(3)]
    error = OSError("no")
    attempts.started[0].errback(error)
    assert outcomes == [[error]] * 3
    outcome = outcome_of(flight.join("a", attempts.start))
    attempts.started[1].callback("yes")
    assert outcome == ["yes"]


@pytest.mark.parametrize(
    "end", [lambda attempt: attempt.callback("value"), lambda attempt: attempt.errback(OSError())]
)
def test_canceled_waiter_does_not_affect_the_others(end: Callable[[Deferred[str]], None]) -> None:
    """Nothing of the attempt is cancelled, and no error is left unhandled (the guard would tell)."""
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    waiters = [flight.join("a", attempts.start) for _ in range(200)]
    outcomes = [outcome_of(waiter) for waiter in waiters]
    for waiter in waiters[::2]:
        waiter.cancel()
    assert [type(outcome[0]) for outcome in outcomes[::2]] == [CancelledError] * 100
    assert not attempts.started[0].called
    end(attempts.started[0])
    assert all(len(outcome) == 1 for outcome in outcomes)
    assert not any(isinstance(outcome[0], CancelledError) for outcome in outcomes[1::2])


@pytest.mark.parametrize(
    "end", [lambda attempt: attempt.callback("value"), lambda attempt: attempt.errback(NotFound("no"))]
)
def test_attempt_without_waiters_ends_silently(end: Callable[[Deferred[str]], None]) -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    first = flight.join("a", attempts.start)
    outcome_of(first)
    first.cancel()
    retry = outcome_of(flight.join("a", attempts.start))
    assert len(attempts.started) == 1, "the retry joins what the first one started"
    second = flight.join("b", attempts.start)
    outcome_of(second)
    second.cancel()
    end(attempts.started[1])
    end(attempts.started[0])
    assert len(retry) == 1


def test_synchronous_attempt_fires_at_once() -> None:
    flight: SingleFlight[str, str] = SingleFlight()

    async def ready() -> str:
        return "value"

    async def failing() -> str:
        raise OSError

    assert outcome_of(flight.join("a", ready)) == ["value"]
    assert isinstance(outcome_of(flight.join("a", failing))[0], OSError)
    assert outcome_of(flight.join("a", ready)) == ["value"]


def test_caller_from_a_callback_starts_another_attempt() -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    again: list[list[object]] = []
    flight.join("a", attempts.start).addCallback(
        lambda _: again.append(outcome_of(flight.join("a", attempts.start)))
    )
    other = outcome_of(flight.join("a", attempts.start))
    attempts.started[0].callback("first")
    assert (other, again) == (["first"], [[]])
    attempts.started[1].callback("second")
    assert again == [["second"]]


def test_unexpected_error_is_logged_if_no_waiter_is_left(
    logged_failures: LoggedFailures,
) -> None:
    flight: SingleFlight[str, str] = SingleFlight()
    attempts = Attempts()
    waiters = [flight.join(key, attempts.start) for key in ("left", "left", "told", "told")]
    outcomes = [outcome_of(waiter) for waiter in waiters]
    for waiter in waiters[:3]:
        waiter.cancel()
    left, told = OSError("left"), OSError("told")
    attempts.started[0].errback(left)
    attempts.started[1].errback(told)
    assert outcomes[3] == [told]
    assert [failure.value for failure in logged_failures.flush(OSError)] == [left]


def test_no_attempt_is_started_beyond_the_limit_but_any_is_joined() -> None:
    flight: SingleFlight[str, str] = SingleFlight(limit=2)
    attempts = Attempts()
    first, _ = flight.join("a", attempts.start), flight.join("b", attempts.start)
    with pytest.raises(Unavailable):
        flight.join("c", attempts.start)
    joined = outcome_of(flight.join("a", attempts.start))
    first.cancel()
    outcome_of(first)
    attempts.started[0].callback("value")
    assert joined == ["value"]
    flight.join("c", attempts.start)
    assert len(attempts.started) == 3


def test_canceling_a_shielded_waiter_does_not_cancel_the_work(logged_failures: LoggedFailures) -> None:
    for leaves in (False, True):
        for result in ("value", NotFound("no")):
            work: Deferred[str] = Deferred()
            waiter = shielded(work)
            outcome = outcome_of(waiter)
            if leaves:
                waiter.cancel()
            work.callback(result) if isinstance(result, str) else work.errback(result)
            assert outcome == [result] or (leaves and isinstance(outcome[0], CancelledError))
            assert len(outcome) == 1
    work = Deferred()
    waiter = shielded(work)
    outcome_of(waiter)
    waiter.cancel()
    work.errback(OSError("unforeseen"))
    assert len(logged_failures.flush(OSError)) == 1
