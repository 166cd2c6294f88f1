"""What is measured, as JSON has it and as tables are made of it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spread(TypedDict):
    """Of the rounds of a run."""

    median: float
    least: float
    greatest: float


class Target(TypedDict, total=False):
    """What a figure is to be."""

    at_least: float
    at_most: float


class Cost(TypedDict):
    """Of one server; without CPU time where its process is not known."""

    requests_per_second: Spread
    gigabytes_per_second: Spread
    cpu_seconds_per_1000_requests: Spread | None
    cpu_seconds_per_gigabyte: Spread | None


class Ratio(TypedDict):
    """One server divided by the yardstick, round by round."""

    throughput: Spread
    cpu: Spread | None


class RaceResult(TypedDict):
    """Servers that did the same in turn. What counts are bytes, or else requests."""

    scenario: str
    counts_bytes: bool
    servers: dict[str, Cost]
    ratios: dict[str, Ratio]
    throughput_target: Target
    cpu_target: Target


class Finding(TypedDict):
    """One figure of one server."""

    scenario: str
    server: str
    figure: str
    unit: str
    value: Spread
    target: Target


class Document(TypedDict):
    """A run."""

    machine: dict[str, str]
    races: list[RaceResult]
    findings: list[Finding]


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest of some values."""
    return Spread(median=statistics.median(values), least=min(values), greatest=max(values))


def meets(value: Spread, target: Target) -> bool:
    """Whether the median is what it is to be."""
    return (
        target.get("at_least", value["median"]) <= value["median"] <= target.get("at_most", value["median"])
    )
