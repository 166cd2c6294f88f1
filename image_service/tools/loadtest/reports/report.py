"""The result of a load test: as a value and as JSON, and whether it passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.tools.loadtest.traffic.objectives import RATES, Timing, format_value
from image_service.tools.loadtest.traffic.profiles import Profile
from image_service.tools.loadtest.traffic.tls import ADVICE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.tools.loadtest.traffic.counters import Interval
    from image_service.tools.loadtest.traffic.fleet_result import FleetResult
    from image_service.tools.loadtest.traffic.histogram import DurationHistogram
    from image_service.tools.loadtest.traffic.image_check import DigestCheck
    from image_service.tools.loadtest.traffic.objectives import Objective
    from image_service.tools.loadtest.traffic.plan import Plan
    from image_service.tools.loadtest.traffic.verification import VerificationFault

PERCENTS = (50.0, 90.0, 99.0, 99.9)
BUSY_SHARE = 0.9
"""Of a processor: above it the client is slow, and not the server."""
SCHEMA = 1


@attrs.frozen(kw_only=True)
class Report:
    """The result of a load test.

    Args:
        objectives: the test fails unless all are met.
        started_at: UTC, as in RFC 3339.
        seconds: how long the clients were active.
        cpu_share: of one processor, used by this process meanwhile.
        requests: complete responses.
        byte_count: bytes of content.
        refusals: responses with Retry-After.
        reconnects: kept-alive connections that ended before a response began.
        errors: failed requests, by kind.
        details: the servers' explanations, by kind.
        server_software: the contents of ``Server`` fields.
        faults: failed verifications, by kind.
        examples: the first of them.
        blocks_compared: blocks that had been read before.
        plotted: the timing whose percentiles ``intervals`` hold.
        intervals: of about a second.
        checks: images that were read whole at the end.
        fleet: how a fleet fared; None: it is another load test.
    """

    plan: Plan
    objectives: Sequence[Objective]
    started_at: str
    seconds: float
    was_interrupted: bool
    cpu_share: float
    requests: int
    byte_count: int
    refusals: int
    reconnects: int
    errors: Mapping[str, int]
    details: Mapping[str, str]
    client_version: str
    server_software: Sequence[str]
    faults: Mapping[VerificationFault, int]
    examples: Sequence[str]
    blocks_compared: int
    timings: Mapping[Timing, DurationHistogram]
    plotted: Timing
    intervals: Sequence[Interval]
    checks: Sequence[DigestCheck]
    fleet: FleetResult | None = None

    def measured(self, objective: Objective) -> float | None:
        """Return the value of an objective, in its dimension's own unit; None if it was not measured."""
        if objective.timing is None:
            return self.rates().get(objective.statistic)
        histogram = self.timings[objective.timing]
        if histogram.count == 0:
            return None
        if objective.percent is not None:
            return histogram.percentile(objective.percent)
        return histogram.largest if objective.statistic == "max" else histogram.mean

    def missed(self) -> list[str]:
        """Return the reasons for failure; none if the test passed."""
        missed = [
            f"{objective.text} is missed: {self.format_measured(objective)}"
            for objective in self.objectives
            if not objective.is_met_by(self.measured(objective))
        ]
        missed += [f"verification failed: {fault}, {count} times" for fault, count in self.faults.items()]
        if self.fleet is not None:
            missed += self.fleet.missed()
        if not self.timings[Timing.FIRST_BYTE].count:
            missed.append(f"no request succeeded: {self.format_errors()}")
        return missed

    def format_measured(self, objective: Objective) -> str:
        """Return the value of an objective for people."""
        measured = self.measured(objective)
        return "not measured" if measured is None else format_value(measured, objective.dimension)

    def remarks(self) -> list[str]:
        """Return the caveats that a reader of the numbers must know."""
        if self.plan.requests_per_second:
            remarks = [
                "Durations count from when a request was due, so they include the wait behind slow ones."
            ]
        else:
            remarks = [
                "Each client waits for its last response: while the server stalls, fewer requests are sent."
            ]
        if self.cpu_share > BUSY_SHARE:
            remarks.append(
                f"This client used {self.cpu_share:.0%} of a processor: it was at its own limit, and"
                " durations include its delays. Run several with fewer --clients."
            )
        if self.was_interrupted:
            remarks.append("It was ended early; no image was read whole at the end.")
        if self.plan.profile is Profile.DOWNLOAD and not self.timings[Timing.REQUEST].count:
            remarks.append("No download was complete in this time.")
        remarks += [f"{kind}: {ADVICE[kind]}." for kind in sorted(self.errors) if kind in ADVICE]
        return remarks + [f"{kind}: the server says: {text}" for kind, text in sorted(self.details.items())]

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that docs/loadtest.md describes."""
        plan = self.plan
        return {
            "schema": SCHEMA,
            "begun_at": self.started_at,
            "seconds": self.seconds,
            "was_interrupted": self.was_interrupted,
            "passed": not self.missed(),
            "missed": self.missed(),
            "plan": {
                "profile": plan.profile,
                "clients": plan.clients,
                "images": len(plan.targets),
                "servers": plan.servers,
                "seconds": plan.seconds,
                "requests_per_second": plan.requests_per_second,
                "bytes_per_second": plan.bytes_per_second,
                "timeout_seconds": plan.timeout_seconds,
            },
            "client_version": self.client_version,
            "server_software": list(self.server_software),
            "client_cpu_share": self.cpu_share,
            "counts": {
                "requests": self.requests,
                "bytes": self.byte_count,
                "refusals": self.refusals,
                "reconnects": self.reconnects,
                "errors": dict(self.errors),
                "details": dict(self.details),
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
            "fleet": None if self.fleet is None else attrs.asdict(self.fleet),
            "intervals": {
                "timing": self.plotted,
                "rows": [attrs.asdict(interval) for interval in self.intervals],
            },
        }

    def format_errors(self) -> str:
        """Return the number of errors of each kind for people."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.errors.items())) or "no errors"

    def format_software(self) -> str:
        """Return the versions of both sides for people."""
        servers = ", ".join(self.server_software) or "no Server field"
        return f"client: image-service {self.client_version}; server: {servers}"

    def format_rate(self, name: str) -> str:
        """Return a share or rate of `rates` for people."""
        return format_value(self.rates()[name], RATES[name])

    def rates(self) -> dict[str, float]:
        """Return shares and rates by their names in objectives."""
        seconds = max(self.seconds, 1e-9)
        failed = sum(self.errors.values())
        sent = max(self.requests + failed + self.refusals, 1)
        return {
            "errors": failed / sent,
            "refusals": self.refusals / sent,
            "throughput": self.byte_count / seconds,
            "requests": self.requests / seconds,
        }


def _summary(histogram: DurationHistogram) -> dict[str, float]:
    percentiles = {f"p{percent:g}_seconds": histogram.percentile(percent) for percent in PERCENTS}
    return {
        "count": histogram.count,
        "mean_seconds": histogram.mean,
        **percentiles,
        "max_seconds": histogram.largest,
    }
