"""The counters of a run: in total, and second by second."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from image_service.tools.loadtest.traffic.histogram import DurationHistogram
from image_service.tools.loadtest.traffic.objectives import Timing

if TYPE_CHECKING:
    from image_service.tools.loadtest.traffic.verification import VerificationFault

MAX_EXAMPLES = 10


@attrs.frozen
class Interval:
    """About one second of the run.

    Args:
        at_seconds: when it ended, since the start.
        requests: complete responses.
        byte_count: bytes of content.
        refusals: responses with Retry-After.
        p50_seconds: of the plotted timing.
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


class LoadCounters:
    """Counts events; those after the last interval belong to none.

    Args:
        plotted: the timing whose percentiles intervals hold.
    """

    def __init__(self, plotted: Timing) -> None:
        self.plotted = plotted
        self.timings = {timing: DurationHistogram() for timing in Timing}
        self.requests = 0
        self.byte_count = 0
        self.refusals = 0
        self.errors: Counter[str] = Counter()
        self.details: dict[str, str] = {}
        self.servers: set[str] = set()
        self.faults: Counter[VerificationFault] = Counter()
        self.examples: list[str] = []
        self.reconnects = 0
        self.intervals: list[Interval] = []
        self._current = DurationHistogram()
        self._counted = (0, 0, 0, 0)
        self._opened_at = 0.0

    def record_duration(self, timing: Timing, seconds: float) -> None:
        """Count a duration."""
        self.timings[timing].record(seconds)
        if timing is self.plotted:
            self._current.record(seconds)

    def record_error(self, kind: str, detail: str = "") -> None:
        """Count an error; the first detail of each kind is kept."""
        self.errors[kind] += 1
        if detail:
            self.details.setdefault(kind, detail)

    def record_server(self, software: str | None) -> None:
        """Keep the content of a ``Server`` field; None: the response has none."""
        if software and len(self.servers) < MAX_EXAMPLES:
            self.servers.add(software)

    def record_fault(self, fault: VerificationFault, example: str) -> None:
        """Count a failed verification; the first few are kept as examples."""
        self.faults[fault] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{fault}: {example}")

    def close_interval(self, at_seconds: float) -> Interval:
        """Close the current interval at `at_seconds` since the start, and open the next."""
        counts = (self.requests, self.byte_count, self.errors.total(), self.refusals)
        requests, byte_count, errors, refusals = (
            after - before for after, before in zip(counts, self._counted, strict=True)
        )
        interval = Interval(
            at_seconds,
            at_seconds - self._opened_at,
            requests,
            byte_count,
            errors,
            refusals,
            self._current.percentile(50),
            self._current.percentile(99),
            self._current.largest,
        )
        self._opened_at, self._counted, self._current = at_seconds, counts, DurationHistogram()
        self.intervals.append(interval)
        return interval
