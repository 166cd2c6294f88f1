"""What happened, counted while it happens: in all, and second by second."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from image_service.loadtest.histogram import Histogram
from image_service.loadtest.objectives import Timing

if TYPE_CHECKING:
    from image_service.loadtest.verification import Fault

MAX_EXAMPLES = 10


@attrs.frozen
class Interval:
    """About a second of the run.

    Args:
        at_seconds: when it ended, from the beginning.
        seconds: how long it was.
        requests: that were answered.
        byte_count: of content that came.
        errors: requests that failed.
        refusals: requests that were told to come again later.
        p50_seconds: of what is plotted.
        p99_seconds: same.
        max_seconds: same.
    """

    at_seconds: float
    seconds: float
    requests: int
    byte_count: int
    errors: int
    refusals: int
    p50_seconds: float
    p99_seconds: float
    max_seconds: float


class Tally:
    """Counts. What is counted after the run has ended belongs to no interval.

    Args:
        plotted: the timing whose course is kept.
    """

    def __init__(self, plotted: Timing) -> None:
        self.plotted = plotted
        self.timings = {timing: Histogram() for timing in Timing}
        self.requests = 0
        self.byte_count = 0
        self.refusals = 0
        self.errors: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.examples: list[str] = []
        self.reconnects = 0
        self.intervals: list[Interval] = []
        self._current = Histogram()
        self._counted = (0.0, 0, 0, 0, 0)

    def record(self, timing: Timing, seconds: float) -> None:
        """Count a duration."""
        self.timings[timing].record(seconds)
        if timing is self.plotted:
            self._current.record(seconds)

    def fault(self, fault: Fault, example: str) -> None:
        """Count a failed verification; the first few are kept as they were."""
        self.faults[fault] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{fault}: {example}")

    def end_interval(self, at_seconds: float) -> Interval:
        """Close the present interval, and begin the next.

        Args:
            at_seconds: now, from the beginning of the run.

        Returns:
            the one that was closed.
        """
        now = (at_seconds, self.requests, self.byte_count, self.errors.total(), self.refusals)
        seconds, requests, byte_count, errors, refusals = (
            after - before for after, before in zip(now, self._counted, strict=True)
        )
        current = self._current
        interval = Interval(
            at_seconds,
            seconds,
            int(requests),
            int(byte_count),
            int(errors),
            int(refusals),
            current.percentile(50),
            current.percentile(99),
            current.largest,
        )
        self._counted, self._current = now, Histogram()
        self.intervals.append(interval)
        return interval
