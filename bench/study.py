"""A study: figures of servers that are not a comparison in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from bench.results import Finding, Target, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.stage import Effort, Stage


@attrs.frozen
class Study:
    """A scenario that yields figures."""

    name: str
    run: Callable[[Stage], Iterator[Figure]]


@attrs.frozen
class Figure:
    """One figure of one server.

    Args:
        server: its name.
        what: name of the figure.
        unit: of the values; empty for ratios and counts.
        values: one for each measurement.
        target: of the median.
    """

    server: str
    what: str
    unit: str
    values: Sequence[float]
    target: Target = attrs.field(factory=Target)

    def of(self, scenario: str) -> Finding:
        """Return it as a finding of a scenario."""
        return Finding(
            scenario=scenario,
            server=self.server,
            figure=self.what,
            unit=self.unit,
            value=spread(self.values),
            target=self.target,
        )


def ratios(effort: Effort, one: Callable[[int], float], other: Callable[[int], float]) -> list[float]:
    """Return the second divided by the first, round by round, after a second of each that does not count."""
    one(1)
    other(1)
    ratios = []
    for number in range(effort.rounds):
        if number % 2:
            divisor, dividend = one(effort.seconds), other(effort.seconds)
        else:
            dividend, divisor = other(effort.seconds), one(effort.seconds)
        ratios.append(dividend / divisor)
    return ratios
