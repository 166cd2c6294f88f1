"""Counters and intervals."""

from __future__ import annotations

from image_service.tools.loadtest.traffic.counters import MAX_EXAMPLES, LoadCounters
from image_service.tools.loadtest.traffic.objectives import Timing
from image_service.tools.loadtest.traffic.verification import VerificationFault


def test_interval_counts_events_since_the_last_one() -> None:
    counters = LoadCounters(Timing.REQUEST)
    counters.record_duration(Timing.REQUEST, 0.5)
    counters.record_duration(Timing.CONNECT, 9.0)
    counters.requests, counters.byte_count = 1, 100
    first = counters.close_interval(1.0)
    counters.record_duration(Timing.REQUEST, 0.25)
    counters.requests, counters.byte_count, counters.refusals = 3, 150, 1
    counters.errors["reset"] += 2
    second = counters.close_interval(3.0)
    assert counters.intervals == [first, second]
    assert (first.requests, first.byte_count, first.errors, first.max_seconds) == (1, 100, 0, 0.5)
    assert (second.seconds, second.requests, second.byte_count) == (2.0, 2, 50)
    assert (second.errors, second.refusals, second.max_seconds) == (2, 1, 0.25)
    assert counters.timings[Timing.REQUEST].count == 2
    assert counters.close_interval(4.0).max_seconds == 0


def test_all_faults_are_counted_and_first_examples_kept() -> None:
    counters = LoadCounters(Timing.REQUEST)
    for number in range(MAX_EXAMPLES + 5):
        counters.record_fault(VerificationFault.LENGTH, f"image {number}")
    assert counters.faults == {VerificationFault.LENGTH: MAX_EXAMPLES + 5}
    assert len(counters.examples) == MAX_EXAMPLES
    assert counters.examples[0] == "length: image 0"
