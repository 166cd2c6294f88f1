"""What is known of a worker's counts, with the time in the test's hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import Clock

from image_service.app.workers.counts import ANSWER_SECONDS, Counts

if TYPE_CHECKING:
    from typing import TypeAlias

    Metric: TypeAlias = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]

COUNTER: Metric = ("a", "", "counter", [("a_total", {}, 1.0)])
GAUGE: Metric = ("b", "", "gauge", [("b", {}, 1.0)])
COUNTED: list[Metric] = [COUNTER, GAUGE]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts(clock: Clock) -> Counts:
    return Counts(clock)


def test_who_answers_is_known(counts: Counts, clock: Clock) -> None:
    asked: list[None] = []
    answered = counts.ask(lambda: asked.append(None))
    assert (len(asked), answered.called) == (1, False)
    counts.take(COUNTED)
    assert answered.called
    assert (counts.latest, clock.getDelayedCalls()) == (COUNTED, [])


def test_of_one_that_does_not_answer_in_time_what_it_had_counted_is(counts: Counts, clock: Clock) -> None:
    counts.take(COUNTED)
    answered = counts.ask(lambda: None)
    clock.advance(ANSWER_SECONDS)
    assert answered.called
    assert counts.latest == [COUNTER]
    counts.take(COUNTED)  # late
    assert counts.latest == COUNTED


def test_of_one_that_is_gone_the_counts_are_given_once(counts: Counts, clock: Clock) -> None:
    counts.take(COUNTED)
    answered = counts.ask(lambda: None)
    assert counts.part() == [COUNTER]
    assert answered.called
    assert (counts.latest, counts.part(), clock.getDelayedCalls()) == ([], [], [])
