"""What a load test has shown: as a value, as JSON, and whether that is what was to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.loadtest.certificates import ADVICE
from image_service.loadtest.objectives import Timing, tell
from image_service.loadtest.profiles import Profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.loadtest.check import DigestCheck
    from image_service.loadtest.histogram import Histogram
    from image_service.loadtest.objectives import Objective
    from image_service.loadtest.plan import Plan
    from image_service.loadtest.tally import Interval
    from image_service.loadtest.verification import Fault

PERCENTS = (50.0, 90.0, 99.0, 99.9)
BUSY_SHARE = 0.9
"""Of a processor: from here on it is this client that is slow, and not the server."""
SCHEMA = 1


@attrs.frozen(kw_only=True)
class Report:
    """All of it.

    Args:
        plan: what was done.
        objectives: what was to be shown.
        begun_at: UTC, as RFC 3339 writes it.
        seconds: how long the clients were at work.
        was_interrupted: somebody ended it.
        cpu_share: of one processor, that this process used meanwhile.
        requests: that were answered.
        byte_count: of content that was read.
        refusals: requests that were told to come again later.
        reconnects: kept-alive connections that ended before an answer began.
        errors: requests that failed, by what became of them.
        faults: failed verifications, by kind.
        examples: the first of them.
        blocks_compared: that had been read before.
        timings: distributions.
        plotted: the timing that ``intervals`` show.
        intervals: the course of it.
        checks: images that were read whole in the end.
    """

    plan: Plan
    objectives: Sequence[Objective]
    begun_at: str
    seconds: float
    was_interrupted: bool
    cpu_share: float
    requests: int
    byte_count: int
    refusals: int
    reconnects: int
    errors: Mapping[str, int]
    faults: Mapping[Fault, int]
    examples: Sequence[str]
    blocks_compared: int
    timings: Mapping[Timing, Histogram]
    plotted: Timing
    intervals: Sequence[Interval]
    checks: Sequence[DigestCheck]

    def measured(self, objective: Objective) -> float | None:
        """Give what an objective is about, in its dimension's own unit; None: it was not measured."""
        if objective.timing is None:
            return self.rates().get(objective.statistic)
        histogram = self.timings[objective.timing]
        if histogram.count == 0:
            return None
        if objective.percent is not None:
            return histogram.percentile(objective.percent)
        return histogram.largest if objective.statistic == "max" else histogram.mean

    def missed(self) -> list[str]:
        """Say why this was no success; nothing where it was."""
        missed = [
            f"{objective.text} is missed: {self.tell_measured(objective)}"
            for objective in self.objectives
            if not objective.is_met_by(self.measured(objective))
        ]
        missed += [f"verification failed: {fault}, {count} times" for fault, count in self.faults.items()]
        if not self.timings[Timing.FIRST_BYTE].count:
            missed.append("no request was answered")
        return missed

    def tell_measured(self, objective: Objective) -> str:
        """Write what an objective is about."""
        measured = self.measured(objective)
        return "not measured" if measured is None else tell(measured, objective.dimension)

    def remarks(self) -> list[str]:
        """Say what has to be known to read the numbers."""
        if self.plan.requests_per_second:
            remarks = [
                "Durations count from when a request was due, so they hold the waits behind slow ones."
            ]
        else:
            remarks = [
                "Each client asks when its last answer has ended: while the server stalls, less is asked."
            ]
        if self.cpu_share > BUSY_SHARE:
            remarks.append(
                f"This client used {self.cpu_share:.0%} of a processor: it was at its own limit, and"
                " durations hold its delays. Run several with fewer --clients."
            )
        if self.was_interrupted:
            remarks.append("It was ended early; no image was read whole in the end.")
        if self.plan.profile is Profile.DOWNLOAD and not self.timings[Timing.REQUEST].count:
            remarks.append("No download came to its end in this time.")
        return remarks + [f"{kind}: {ADVICE[kind]}." for kind in sorted(self.errors) if kind in ADVICE]

    def to_json(self) -> dict[str, object]:
        """Give all of it as a JSON object; docs/loadtest.md says what is in it."""
        plan = self.plan
        return {
            "schema": SCHEMA,
            "begun_at": self.begun_at,
            "seconds": self.seconds,
            "was_interrupted": self.was_interrupted,
            "passed": not self.missed(),
            "missed": self.missed(),
            "plan": {
                "profile": plan.profile,
                "clients": plan.clients,
                "images": len(plan.targets),
                "servers": sorted({str(target.origin) for target in plan.targets}),
                "seconds": plan.seconds,
                "requests_per_second": plan.requests_per_second,
                "bytes_per_second": plan.bytes_per_second,
                "timeout_seconds": plan.timeout_seconds,
            },
            "client_cpu_share": self.cpu_share,
            "counts": {
                "requests": self.requests,
                "bytes": self.byte_count,
                "refusals": self.refusals,
                "reconnects": self.reconnects,
                "errors": dict(self.errors),
            },
            "rates": self.rates(),
            "timings": {timing: _summary(histogram) for timing, histogram in self.timings.items()},
            "objectives": [
                {
                    "text": objective.text,
                    "measured": self.measured(objective),
                    "unit": objective.dimension.value,
                    "met": objective.is_met_by(self.measured(objective)),
                }
                for objective in self.objectives
            ],
            "verification": {
                "faults": dict(self.faults),
                "examples": list(self.examples),
                "blocks_compared": self.blocks_compared,
                "whole_images": [attrs.asdict(check) for check in self.checks],
            },
            "intervals": {
                "timing": self.plotted,
                "rows": [attrs.asdict(interval) for interval in self.intervals],
            },
        }

    def rates(self) -> dict[str, float]:
        """Give shares and rates, by the names that objectives have for them."""
        seconds = max(self.seconds, 1e-9)
        failed = sum(self.errors.values())
        sent = max(self.requests + failed + self.refusals, 1)
        return {
            "errors": failed / sent,
            "refusals": self.refusals / sent,
            "throughput": self.byte_count / seconds,
            "requests": self.requests / seconds,
        }


def _summary(histogram: Histogram) -> dict[str, float]:
    percentiles = {f"p{percent:g}_seconds": histogram.percentile(percent) for percent in PERCENTS}
    return {
        "count": histogram.count,
        "mean_seconds": histogram.mean,
        **percentiles,
        "max_seconds": histogram.largest,
    }
