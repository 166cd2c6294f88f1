"""Reports of load tests that never were."""

from __future__ import annotations

from typing import Any

import attrs

from image_service.loadtest.check import DigestCheck
from image_service.loadtest.objectives import Timing, parse_objective
from image_service.loadtest.plan import Plan
from image_service.loadtest.profiles import Profile
from image_service.loadtest.report import Report
from image_service.loadtest.tally import Tally
from image_service.loadtest.targets import parse_target

SECRET = "top-secret"
PLAN = Plan(
    targets=(parse_target(f"http://h/bytoken/{SECRET}/4.17/x86_64/full.iso"),),
    profile=Profile.MOUNT,
    clients=4,
    seconds=2.0,
    fields=(("Authorization", SECRET),),
)


def report(*objectives: str, durations: tuple[float, ...] = (0.01, 0.02, 0.03), **changes: Any) -> Report:
    """Make a report of requests that took so long, in two intervals."""
    tally = Tally(Timing.REQUEST)
    for seconds in durations:
        tally.record(Timing.REQUEST, seconds)
        tally.record(Timing.FIRST_BYTE, seconds)
    tally.requests, tally.byte_count = len(durations), 4_000_000
    tally.end_interval(1.0)
    tally.end_interval(2.0)
    made = Report(
        plan=PLAN,
        objectives=tuple(map(parse_objective, objectives)),
        begun_at="2026-01-02T03:04:05+00:00",
        seconds=2.0,
        was_interrupted=False,
        cpu_share=0.25,
        requests=tally.requests,
        byte_count=tally.byte_count,
        refusals=0,
        reconnects=0,
        errors={},
        faults={},
        examples=(),
        blocks_compared=7,
        timings=tally.timings,
        plotted=tally.plotted,
        intervals=tally.intervals,
        checks=(DigestCheck("http://h/…/full.iso", "equal", "ab" * 32),),
    )
    return attrs.evolve(made, **changes)
