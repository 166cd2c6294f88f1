"""A worker's metrics as the supervisor knows them, on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import Clock

from image_service.server.processes.process_counts import TIMEOUT_SECONDS, ProcessCounts

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
def counts(clock: Clock) -> ProcessCounts:
    return ProcessCounts(clock)


def test_response_in_time_is_the_latest(counts: ProcessCounts, clock: Clock) -> None:
    requests: list[None] = []
    collected = counts.collect(lambda: requests.append(None))
    assert (len(requests), collected.called) == (1, False)
    counts.update(COUNTED)
    assert collected.called
    assert (counts.latest, clock.getDelayedCalls()) == (COUNTED, [])


def test_timeout_keeps_only_what_lasts(counts: ProcessCounts, clock: Clock) -> None:
    counts.update(COUNTED)
    collected = counts.collect(lambda: None)
    clock.advance(TIMEOUT_SECONDS)
    assert collected.called
    assert counts.latest == [COUNTER]
    counts.update(COUNTED)  # late
    assert counts.latest == COUNTED


def test_drain_returns_lasting_counters_only_once(counts: ProcessCounts, clock: Clock) -> None:
    counts.update(COUNTED)
    collected = counts.collect(lambda: None)
    assert counts.drain() == [COUNTER]
    assert collected.called
    assert (counts.latest, counts.drain(), clock.getDelayedCalls()) == ([], [], [])
