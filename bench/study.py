"""A study: figures of servers that are no race."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from bench.results import Finding, Target, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.stage import Stage


@attrs.frozen
class Study:
    """What is found out.

    Args:
        name: of the scenario.
        run: finds it out.
    """

    name: str
    run: Callable[[Stage], Iterator[Figure]]


@attrs.frozen
class Figure:
    """One figure of one server.

    Args:
        server: whose.
        what: was measured.
        unit: of the values; empty for ratios and counts.
        values: one for each time that it was measured.
        target: what it is to be.
    """

    server: str
    what: str
    unit: str
    values: Sequence[float]
    target: Target = attrs.field(factory=Target)

    def of(self, scenario: str) -> Finding:
        """Give it as a scenario's finding."""
        return Finding(
            scenario=scenario,
            server=self.server,
            figure=self.what,
            unit=self.unit,
            value=spread(self.values),
            target=self.target,
        )
