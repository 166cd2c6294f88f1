from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from image_service.common.concurrency.circuit_breaker import (
    MAX_PENDING,
    PAUSE_SECONDS,
    TIMEOUT_SECONDS,
    CircuitBreaker,
)
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import LoggedFailures


@attrs.define(eq=False)
class Threads:
    """Work waits in them until the test runs it."""

    waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = attrs.field(factory=list)

    def __call__(self, work: Callable[[], Any], /) -> Deferred[Any]:
        self.waiting.append((work, Deferred()))
        return self.waiting[-1][1]

    def run(self) -> None:
        """Run the work that has waited longest."""
        work, done = self.waiting.pop(0)
        try:
            result: object = work()
        except StoreFailed:
            result = Failure()
        done.callback(result)


@attrs.define(eq=False)
class Breaker:
    """A circuit breaker whose clock and threads the test moves."""

    clock: Clock = attrs.field(factory=Clock)
    threads: Threads = attrs.field(factory=Threads)
    begun: list[str] = attrs.field(factory=list)
    breaker: CircuitBreaker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.breaker = CircuitBreaker(self.threads, self.clock)

    def call(self, name: str, *, fails: bool = False) -> Deferred[str]:
        def work() -> str:
            self.begun.append(name)
            if fails:
                raise StoreFailed(f"{name} fails")
            return name

        return Deferred.fromCoroutine(self.breaker(work))

    def succeeds(self, name: str) -> bool:
        """Return True if a call is tried and succeeds."""
        result = self.call(name)
        if not self.threads.waiting:
            failure_of(result)
            return False
        self.threads.run()
        assert value_of(result) == name
        return True


def value_of(result: Deferred[str]) -> str:
    values: list[str] = []
    result.addCallback(values.append)
    (value,) = values
    return value


def failure_of(result: Deferred[str]) -> str:
    """Return the detail of a call that has failed with StoreFailed."""
    failures: list[Failure] = []
    result.addErrback(failures.append)
    (failure,) = failures
    assert isinstance(failure.value, StoreFailed)
    return failure.value.detail


@pytest.fixture
def breaker() -> Breaker:
    return Breaker()


def test_result_is_returned(breaker: Breaker) -> None:
    assert breaker.succeeds("a")
    assert breaker.succeeds("b")


def test_failure_leaves_the_store_alone_until_the_pause_is_over(breaker: Breaker) -> None:
    failed = breaker.call("a", fails=True)
    breaker.threads.run()
    assert failure_of(failed) == "a fails"
    breaker.clock.advance(PAUSE_SECONDS - 0.01)
    assert failure_of(breaker.call("b")) == "a fails"
    assert breaker.begun == ["a"]
    breaker.clock.advance(0.01)
    assert breaker.succeeds("c")
    assert breaker.succeeds("d")


def test_one_call_at_a_time_is_tried_after_the_pause(breaker: Breaker) -> None:
    failed = breaker.call("a", fails=True)
    breaker.threads.run()
    failure_of(failed)
    breaker.clock.advance(PAUSE_SECONDS)
    attempt = breaker.call("b", fails=True)
    assert failure_of(breaker.call("c")) == "a fails"
    breaker.threads.run()
    assert failure_of(attempt) == "b fails"
    assert failure_of(breaker.call("d")) == "b fails"
    assert breaker.begun == ["a", "b"]


def test_slow_work_counts_as_failing(breaker: Breaker) -> None:
    slow = breaker.call("a")
    breaker.clock.advance(TIMEOUT_SECONDS - 0.01)
    assert not slow.called
    breaker.clock.advance(0.01)
    assert failure_of(slow) == f"no result within {TIMEOUT_SECONDS:g} s"
    assert failure_of(breaker.call("b")) == f"no result within {TIMEOUT_SECONDS:g} s"
    assert breaker.begun == []


def test_work_that_hangs_keeps_the_circuit_open(breaker: Breaker) -> None:
    """Or each pause would leave another call in the threads."""
    hanging = breaker.call("a")
    breaker.clock.advance(TIMEOUT_SECONDS)
    failure_of(hanging)
    for _ in range(5):
        breaker.clock.advance(PAUSE_SECONDS)
        failure_of(breaker.call("b"))
    assert len(breaker.threads.waiting) == 1
    breaker.threads.run()
    assert breaker.succeeds("c")


def test_call_that_was_not_begun_while_others_were_done_fails_alone(breaker: Breaker) -> None:
    """The store works, but has too much to do: it is not left alone for that."""
    done, waiting = breaker.call("a"), breaker.call("b")
    breaker.threads.run()
    assert value_of(done) == "a"
    breaker.clock.advance(TIMEOUT_SECONDS)
    failure_of(waiting)
    following = breaker.call("c")
    breaker.threads.run()
    breaker.threads.run()
    assert value_of(following) == "c"
    assert breaker.begun == ["a", "c"]


def test_work_that_nobody_waits_for_is_not_begun(breaker: Breaker) -> None:
    late, canceled = breaker.call("a"), breaker.call("b")
    canceled.cancel()
    canceled.addErrback(lambda failure: failure.trap(CancelledError))
    breaker.clock.advance(TIMEOUT_SECONDS)
    failure_of(late)
    breaker.threads.run()
    breaker.threads.run()
    assert breaker.begun == []


def test_late_success_is_no_sign_of_health(breaker: Breaker) -> None:
    def work() -> str:
        breaker.clock.advance(TIMEOUT_SECONDS)  # while it runs
        return "late"

    late = Deferred.fromCoroutine(breaker.breaker(work))
    breaker.threads.run()
    failure_of(late)
    failure_of(breaker.call("b"))


def test_number_of_waiting_calls_is_bounded(breaker: Breaker) -> None:
    calls = [breaker.call(str(number)) for number in range(MAX_PENDING)]
    assert "waiting" in failure_of(breaker.call("one too many"))
    for _ in calls:
        breaker.threads.run()
    assert [value_of(call) for call in calls] == [str(number) for number in range(MAX_PENDING)]
    assert breaker.succeeds("next")


def test_unexpected_error_is_raised_and_opens_nothing(
    breaker: Breaker, logged_failures: LoggedFailures
) -> None:
    failed = breaker.call("a")
    breaker.threads.waiting.pop()[1].errback(KeyError("unexpected"))
    failures: list[Failure] = []
    failed.addErrback(failures.append)
    assert failures[0].check(KeyError)
    assert breaker.succeeds("b")
    logged_failures.flush(KeyError)
