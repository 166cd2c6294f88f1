"""The steps of a history: chosen by a seed, and left out one by one while the fault stays."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.simulation.events import Outcome

SHORTENING_RUNS = 150


@attrs.frozen
class Step:
    """One thing that happens.

    Args:
        after: seconds since the step before.
        act: its name.
        draws: numbers between 0 and 1 that decide its details.
    """

    after: float
    act: str
    draws: tuple[float, ...]


def choose_steps(seed: int, weights: Mapping[str, int], number: int, mean_seconds: float = 0.0) -> list[Step]:
    """Return the steps of a seed; weights say how often each act is chosen."""
    chance = Random(f"steps {seed}")
    return [
        Step(
            mean_seconds and chance.expovariate(1 / mean_seconds),
            chance.choices(tuple(weights), tuple(weights.values()))[0],
            tuple(chance.random() for _ in range(5)),
        )
        for _ in range(number)
    ]


def shorten(run: Callable[[Sequence[Step]], Outcome], steps: Sequence[Step]) -> list[Step]:
    """Return as few steps of a history with a fault as still have one, each at its time."""
    left, size, runs = list(steps), len(steps), 0
    while size:
        start = 0
        while start < len(left) and runs < SHORTENING_RUNS:
            fewer = _without(left, start, start + size)
            runs += 1
            if run(fewer).faults:
                left = fewer
            else:
                start += size
        size //= 2
    return left


def _without(steps: Sequence[Step], start: int, stop: int) -> list[Step]:
    """Return the other steps; the one that follows comes when it would have come."""
    skipped = sum(step.after for step in steps[start:stop])
    after = [attrs.evolve(step, after=step.after + skipped) for step in steps[stop : stop + 1]]
    return [*steps[:start], *after, *steps[stop + 1 :]]


def describe(run: Callable[[Sequence[Step]], Outcome], steps: Sequence[Step]) -> str:
    """Return the fault of a history, its steps, as few as still have one, and what happened last."""
    left = shorten(run, steps)
    outcome = run(left)
    told = "\n".join(f"  {step.after:8.3f} s later: {step.act}" for step in left)
    return f"{outcome.faults[0]}\nthe history, shortened:\n{told}\nwhat happened:\n{outcome.trace}"
