"""`python -m tests.simulation SEED`: carries out the history of a seed, or of several from it on."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import attrs
from twisted.logger import globalLogBeginner

from tests.simulation.events import Outcome
from tests.simulation.kinds import KINDS, REPLICAS

SHARE = 50
"""Histories that a process takes at a time."""


def main() -> None:
    """Print the trace of one history, or the first fault of several."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--histories", type=int, default=1, help="carry out so many, from this seed on")
    parser.add_argument("--of", choices=KINDS, default=REPLICAS, help="kind of the histories")
    parser.add_argument("--all", action="store_true", help="carry out as many of each kind as .ci/run does")
    parser.add_argument(
        "--quiet", action="store_true", help="exit with 1 at the first fault, without shortening it"
    )
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    numbers = {name: kind.number for name, kind in KINDS.items()}
    if not options.all:
        numbers = {options.of: options.histories}
    carry_out(options.seed, numbers, is_quiet=options.quiet, processes=options.processes)


def carry_out(first: int, numbers: dict[str, int], *, is_quiet: bool, processes: int) -> None:
    """Carry out so many histories of each kind, in several processes."""
    shares = [
        (name, range(start, min(start + SHARE, first + number)))
        for name, number in numbers.items()
        for start in range(first, first + number, SHARE)
    ]
    seconds = dict.fromkeys(numbers, 0.0)
    with ProcessPoolExecutor(processes, initializer=_ignore_ended_processes) as pool:
        outcomes = pool.map(partial(run_share, is_quiet=is_quiet), shares)
        for (name, _), outcome in zip(shares, outcomes, strict=True):
            seconds[name] += outcome.simulated_seconds
            if outcome.faults or list(numbers.values()) == [1]:
                say(outcome.trace)
            if outcome.faults:
                pool.shutdown(cancel_futures=True)
                sys.exit(1)
    for name, number in numbers.items():
        say(f"no fault in {number} histories of {name}, of {seconds[name]:,.0f} simulated seconds")


def _ignore_ended_processes() -> None:
    """Print nothing of the coroutines of killed processes, which are collected after their history."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False)
    sys.unraisablehook = lambda _: None


def run_share(share: tuple[str, range], *, is_quiet: bool) -> Outcome:
    """Carry out histories until one has a fault, which the trace then describes."""
    name, seeds = share
    kind, seconds, outcome = KINDS[name], 0.0, Outcome("", (), 0.0)
    with kind.opened() as run:
        for seed in seeds:
            outcome = run(seed, kind.make_steps(seed))
            seconds += outcome.simulated_seconds
            if outcome.faults:
                trace = f"seed {seed}: {outcome.faults[0]}"
                if not is_quiet:
                    named = f"SEED={seed}" if name == REPLICAS else f"SEED={seed} ARGS='--of {name}'"
                    trace = f"make simulate {named}: {kind.describe(run, seed)}"
                return attrs.evolve(outcome, trace=trace, simulated_seconds=seconds)
    return attrs.evolve(outcome, simulated_seconds=seconds)


def say(text: str) -> None:
    """Print a text."""
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
