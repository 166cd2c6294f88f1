"""A study: figures of servers that are not a comparison in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from bench.results import Finding, Target, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.stage import Effort, Stage

    Run: TypeAlias = Callable[[Stage], Iterator["Figure"]]


@attrs.frozen
class Study:
    """A scenario that yields figures.

    Args:
        name: of the scenario.
        run: measures.
        run_small: does the same with small numbers; None: `run` has no numbers beside the stage's effort.
    """

    name: str
    run: Run
    run_small: Run | None = None

    def measure(self, stage: Stage) -> list[Finding]:
        """Measure with the numbers of the stage's effort."""
        run = self.run if stage.effort.full or self.run_small is None else self.run_small
        return [figure.to_finding() for figure in run(stage)]


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

    def to_finding(self) -> Finding:
        """Return what a result says of it."""
        return Finding(
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
