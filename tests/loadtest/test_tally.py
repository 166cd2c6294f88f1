"""What is counted, second by second."""

from __future__ import annotations

from image_service.loadtest.objectives import Timing
from image_service.loadtest.tally import MAX_EXAMPLES, Tally
from image_service.loadtest.verification import Fault


def test_intervals_hold_what_happened_in_them() -> None:
    tally = Tally(Timing.REQUEST)
    tally.record(Timing.REQUEST, 0.5)
    tally.record(Timing.CONNECT, 9.0)
    tally.requests, tally.byte_count = 1, 100
    first = tally.end_interval(1.0)
    tally.record(Timing.REQUEST, 0.25)
    tally.requests, tally.byte_count, tally.refusals = 3, 150, 1
    tally.errors["reset"] += 2
    second = tally.end_interval(3.0)
    assert tally.intervals == [first, second]
    assert (first.requests, first.byte_count, first.errors, first.max_seconds) == (1, 100, 0, 0.5)
    assert (second.seconds, second.requests, second.byte_count) == (2.0, 2, 50)
    assert (second.errors, second.refusals, second.max_seconds) == (2, 1, 0.25)
    assert tally.timings[Timing.REQUEST].count == 2
    assert tally.end_interval(4.0).max_seconds == 0


def test_a_few_examples_are_kept_and_all_faults_counted() -> None:
    tally = Tally(Timing.REQUEST)
    for number in range(MAX_EXAMPLES + 5):
        tally.fault(Fault.LENGTH, f"image {number}")
    assert tally.faults == {Fault.LENGTH: MAX_EXAMPLES + 5}
    assert len(tally.examples) == MAX_EXAMPLES
    assert tally.examples[0] == "length: image 0"
