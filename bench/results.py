"""The results of a run: one JSON file for each scenario, dated by the commit of the measured code."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).with_name("results")
"""The results of docs/performance.md."""


class Spread(TypedDict):
    """The spread of a figure over the rounds of a run; of old figures the median alone may be known."""

    median: float
    least: NotRequired[float]
    greatest: NotRequired[float]


class Target(TypedDict, total=False):
    """The bounds that a median must meet."""

    at_least: float
    at_most: float


class Cost(TypedDict):
    """The figures of one server.

    Attributes:
        throughput: GB or requests per second.
        cpu: seconds for a GB or for 1,000 requests; None: its process is unknown.
    """

    throughput: Spread
    cpu: Spread | None


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

    counts_bytes: bool
    servers: dict[str, Cost]
    ratios: list[Ratio]


class Finding(TypedDict):
    """One figure of one server."""

    server: str
    figure: str
    unit: str
    value: Spread
    target: Target


class Result(TypedDict):
    """The result of one scenario.

    Attributes:
        commit: the last that changed the measured code; with "+", it had changes without a commit.
        effort: see `Effort`.
        load_average: before.
        machine: what figures depend on, by name.
        comparison: of a `Comparison`.
        findings: of a `Study`.
        left_out: why nothing was measured.
    """

    scenario: str
    commit: str
    date: str
    effort: dict[str, int]
    load_average: NotRequired[float]
    machine: dict[str, str]
    comparison: NotRequired[ComparisonResult]
    findings: NotRequired[list[Finding]]
    left_out: NotRequired[str]


def spread(values: Sequence[float]) -> Spread:
    """Return median, least and greatest value."""
    return Spread(median=statistics.median(values), least=min(values), greatest=max(values))


def meets(value: Spread, target: Target) -> bool:
    """Return True if the median meets the target."""
    return (
        target.get("at_least", value["median"]) <= value["median"] <= target.get("at_most", value["median"])
    )


def load(directory: Path, scenario: str) -> Result | None:
    """Return the result of a scenario; None: it has not been measured."""
    try:
        result: Result = json.loads(_file(directory, scenario).read_text())
    except FileNotFoundError:
        return None
    return result


def save(directory: Path, result: Result) -> None:
    """Write a result in place of an older one."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    _file(directory, result["scenario"]).write_text(f"{text}\n")


def _file(directory: Path, scenario: str) -> Path:
    return directory / f"{re.sub('[^a-z0-9]+', '-', scenario.lower()).strip('-')}.json"
