"""Objectives of the command line: ``p99<200ms``, ``errors<0.1%``, ``throughput>1GB/s``."""

from __future__ import annotations

import operator
import re
from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Timing(StrEnum):
    """The durations that a client measures, from when a request was due; own-wait from its first byte on."""

    REQUEST = "request"
    HEAD = "head"
    RANGE = "range"
    FIRST_BYTE = "first-byte"
    OWN_WAIT = "own-wait"
    CONNECT = "connect"
    FIRST_REQUEST = "first-request"
    COMPOSE = "compose"


class Dimension(StrEnum):
    """The dimension of a value; its own unit is the enumeration's value."""

    SECONDS = "s"
    SHARE = ""
    BYTES_PER_SECOND = "B/s"
    PER_SECOND = "/s"


_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_UNITS: Mapping[Dimension, Mapping[str, float]] = {
    Dimension.SECONDS: {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0},
    Dimension.SHARE: {"": 1.0, "%": 0.01},
    Dimension.BYTES_PER_SECOND: {f"{prefix}B/s": factor for prefix, factor in _PREFIXES.items()},
    Dimension.PER_SECOND: {"/s": 1.0},
}
RATES = {
    "errors": Dimension.SHARE,
    "refusals": Dimension.SHARE,
    "throughput": Dimension.BYTES_PER_SECOND,
    "requests": Dimension.PER_SECOND,
}
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_OBJECTIVE = re.compile(
    r"([a-z-]+\.)?([a-z]+[0-9]*(?:\.[0-9]+)?)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)?)\s*(\S*)"
)
_PERCENTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]+)?|100)")
_STATISTICS = ("max", "mean")


@attrs.frozen
class Objective:
    """A bound that a load test must meet.

    Args:
        text: as on the command line.
        statistic: ``max``, ``mean`` or a percentile (``p99.9``) of a timing; or ``errors``, ``refusals``,
            ``throughput``, ``requests``.
        timing: None for these rates.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        bound: in the dimension's own unit.
        dimension: of the bound and of the measured value.
    """

    text: str
    statistic: str
    timing: Timing | None
    comparison: str
    bound: float
    dimension: Dimension

    def is_met_by(self, measured: float | None) -> bool:
        """Return True if the measured value meets the bound; None (not measured) does not."""
        return measured is not None and _OPERATORS[self.comparison](measured, self.bound)

    @property
    def percent(self) -> float | None:
        """The percentile; None for another statistic."""
        found = _PERCENTILE.fullmatch(self.statistic)
        return float(found[1]) if found else None


def parse_objective(text: str) -> Objective:
    """Parse an objective: ``[TIMING.]STATISTIC`` or a rate, a comparison, a number with its unit.

    A statistic without a timing is that of whole requests. Raises ValueError, which names valid values.
    """
    match = _OBJECTIVE.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be as p99<200ms, first-byte.max<=3s, errors<0.1% or throughput>1GB/s")
    name, statistic, comparison, number, unit = match.groups()
    timing, dimension = None, RATES.get(statistic, Dimension.SECONDS)
    if name or statistic not in RATES:
        name, dimension = (name or f"{Timing.REQUEST}.").removesuffix("."), Dimension.SECONDS
        if name not in set(Timing):
            raise ValueError(f"{name} is not timed; {', '.join(Timing)} are")
        percentile = _PERCENTILE.fullmatch(statistic)
        if not (statistic in _STATISTICS or (percentile and float(percentile[1]) > 0)):
            raise ValueError(f"{statistic} is none of p50, p99, p99.9, …, max, mean, {', '.join(RATES)}")
        timing = Timing(name)
    units = _UNITS[dimension]
    if unit not in units:
        known = ", ".join(name or "none" for name in units)
        if not unit:
            raise ValueError(f"needs a unit, one of {known}")
        raise ValueError(f"has the unit {unit}; here it is one of {known}")
    return Objective(text.strip(), statistic, timing, comparison, float(number) * units[unit], dimension)


def parse_rate(text: str, dimension: Dimension) -> float | None:
    """Parse a rate such as ``10KiB/s`` or ``20/s``; None if the text is not one of this dimension."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(\S+)", text)
    if not found or found[2] not in _UNITS[dimension]:
        return None
    return float(found[1]) * _UNITS[dimension][found[2]] or None


def format_value(value: float, dimension: Dimension) -> str:
    """Format a value, given in the dimension's own unit, with three digits or more in a readable unit."""
    if dimension is Dimension.SHARE:
        return f"{value * 100:.3g} %"
    units = {unit: factor for unit, factor in _UNITS[dimension].items() if unit != "m" and "i" not in unit}
    fitting = [unit for unit in units if value >= units[unit]] or [min(units, key=units.__getitem__)]
    unit = max(fitting, key=units.__getitem__)
    return f"{_digits(value / units[unit])} {unit}" if unit != "/s" else f"{_digits(value)}/s"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits either way


def format_duration(seconds: float) -> str:
    """Format a duration in a readable unit."""
    return format_value(seconds, Dimension.SECONDS)
