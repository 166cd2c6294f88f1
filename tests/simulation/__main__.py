"""`python -m tests.simulation SEED`: carries out the history of a seed, or of several from it on."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
from twisted.logger import globalLogBeginner

from tests.simulation.blocks import run_blocks
from tests.simulation.downloads import run_downloads
from tests.simulation.events import Outcome
from tests.simulation.histories import describe, run_history
from tests.simulation.jobs import run_jobs
from tests.simulation.scenery import scenery

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 50
"""Histories that a process takes at a time."""
REPLICAS = "replicas"
OTHERS = {"downloads": run_downloads, "blocks": run_blocks, "jobs": run_jobs}
HISTORIES = {REPLICAS: 1000, "downloads": 200, "blocks": 12, "jobs": 8}
"""As many as `.ci/run` carries out, and as find each mutation."""


def main() -> None:
    """Print the trace of one history, or the first fault of several."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--histories", type=int, default=1, help="carry out so many, from this seed on")
    parser.add_argument("--of", choices=[*HISTORIES], default=REPLICAS, help="kind of the histories")
    parser.add_argument("--all", action="store_true", help="carry out as many of each kind as .ci/run does")
    parser.add_argument(
        "--quiet", action="store_true", help="exit with 1 at the first fault, without shortening it"
    )
    parser.add_argument("--processes", type=int, default=1, help="for histories of replicas")
    options = parser.parse_args()
    for kind, number in HISTORIES.items() if options.all else [(options.of, options.histories)]:
        seeds = range(options.seed, options.seed + number)
        if kind == REPLICAS:
            run_replicas(seeds, is_quiet=options.quiet, processes=options.processes)
        else:
            run_others(OTHERS[kind], seeds)


def run_replicas(seeds: range, *, is_quiet: bool, processes: int) -> None:
    """Carry out histories of replicas, in several processes."""
    shares = [seeds[start : start + SHARE] for start in range(0, len(seeds), SHARE)]
    seconds = 0.0
    with ProcessPoolExecutor(processes, initializer=_ignore_ended_processes) as pool:
        for outcome in pool.map(partial(run_share, is_quiet=is_quiet), shares):
            seconds += outcome.simulated_seconds
            if outcome.faults:
                say(outcome.trace)
                pool.shutdown(cancel_futures=True)
                sys.exit(1)
            if len(seeds) == 1:
                say(outcome.trace)
    say(f"no fault in {len(seeds)} histories of {seconds:,.0f} simulated seconds")


def _ignore_ended_processes() -> None:
    """Print nothing of the coroutines of killed processes, which are collected after their history."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False)
    sys.unraisablehook = lambda _: None


def run_share(seeds: range, *, is_quiet: bool) -> Outcome:
    """Carry out histories until one has a fault, which the trace then describes."""
    seconds, outcome = 0.0, Outcome("", (), 0.0)
    with TemporaryDirectory() as directory, scenery(Path(directory)) as shared:
        for seed in seeds:
            outcome = run_history(shared, seed)
            seconds += outcome.simulated_seconds
            if outcome.faults:
                trace = f"seed {seed}: {outcome.faults[0]}" if is_quiet else describe(shared, seed)
                return attrs.evolve(outcome, trace=trace, simulated_seconds=seconds)
    return attrs.evolve(outcome, simulated_seconds=seconds)


def run_others(run: Callable[[Path, int], Outcome], seeds: range) -> None:
    """Carry out histories of files or jobs."""
    _ignore_ended_processes()
    seconds = 0.0
    for seed in seeds:
        with TemporaryDirectory() as directory:
            outcome = run(Path(directory), seed)
        seconds += outcome.simulated_seconds
        if outcome.faults:
            say(f"seed {seed}: {outcome.faults[0]}\n{outcome.trace}")
            sys.exit(1)
        if len(seeds) == 1:
            say(outcome.trace)
    say(f"no fault in {len(seeds)} histories of {seconds:,.0f} simulated seconds")


def say(text: str) -> None:
    """Print a text."""
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
