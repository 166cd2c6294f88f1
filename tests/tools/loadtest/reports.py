"""Reports for tests, without a load test."""

from __future__ import annotations

from typing import Any

import attrs

from image_service.tools.loadtest.reports.report import Report
from image_service.tools.loadtest.traffic.counters import LoadCounters
from image_service.tools.loadtest.traffic.image_check import DigestCheck
from image_service.tools.loadtest.traffic.objectives import Timing, parse_objective
from image_service.tools.loadtest.traffic.plan import Plan, parse_target
from image_service.tools.loadtest.traffic.profiles import Profile

SECRET = "top-secret"
PLAN = Plan(
    targets=(parse_target(f"http://h/bytoken/{SECRET}/4.17/x86_64/full.iso"),),
    profile=Profile.MOUNT,
    clients=4,
    seconds=2.0,
    fields=(("Authorization", SECRET),),
)


def report(*objectives: str, durations: tuple[float, ...] = (0.01, 0.02, 0.03), **changes: Any) -> Report:
    """Return a report of requests of these durations, in two intervals."""
    counters = LoadCounters(Timing.REQUEST)
    for seconds in durations:
        counters.record_duration(Timing.REQUEST, seconds)
        counters.record_duration(Timing.FIRST_BYTE, seconds)
    counters.requests, counters.byte_count = len(durations), 4_000_000
    counters.close_interval(1.0)
    counters.close_interval(2.0)
    made = Report(
        plan=PLAN,
        objectives=tuple(map(parse_objective, objectives)),
        started_at="2026-01-02T03:04:05+00:00",
        seconds=2.0,
        was_interrupted=False,
        cpu_share=0.25,
        requests=counters.requests,
        byte_count=counters.byte_count,
        refusals=0,
        reconnects=0,
        errors={},
        details={},
        client_version="1.2.3",
        server_software=(),
        faults={},
        examples=(),
        blocks_compared=7,
        timings=counters.timings,
        plotted=counters.plotted,
        intervals=counters.intervals,
        checks=(DigestCheck("http://h/…/full.iso", "equal", "ab" * 32),),
    )
    return attrs.evolve(made, **changes)
