"""The results of a run, as ``--json`` writes them and tables show them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spread(TypedDict):
    """The spread of a figure over the rounds of a run."""

    median: float
    least: float
    greatest: float


class Target(TypedDict, total=False):
    """The bounds that a median must meet."""

    at_least: float
    at_most: float


class Cost(TypedDict):
    """The figures of one server; without CPU time if its process is unknown."""

    requests_per_second: Spread
    gigabytes_per_second: Spread
    cpu_seconds_per_1000_requests: Spread | None
    cpu_seconds_per_gigabyte: Spread | None


class Ratio(TypedDict):
    """One server divided by another, round by round."""

    server: str
    base: str
    throughput: Spread
    cpu: Spread | None
    throughput_target: Target
    cpu_target: Target


class ComparisonResult(TypedDict):
    """Servers that did the same in turn; throughput is in bytes or in requests."""

    scenario: str
    counts_bytes: bool
    servers: dict[str, Cost]
    ratios: list[Ratio]


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
    comparisons: list[ComparisonResult]
    findings: list[Finding]


def spread(values: Sequence[float]) -> Spread:
    """Return median, least and greatest value."""
    return Spread(median=statistics.median(values), least=min(values), greatest=max(values))


def meets(value: Spread, target: Target) -> bool:
    """Return True if the median meets the target."""
    return (
        target.get("at_least", value["median"]) <= value["median"] <= target.get("at_most", value["median"])
    )
