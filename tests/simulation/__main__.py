"""`python -m tests.simulation SEED`: carries out the history of a seed, or of several from it on."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.histories import describe, run_history
from tests.simulation.scenery import scenery


def main() -> None:
    """Print the trace of one history, or the first fault of several."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--histories", type=int, default=1, help="carry out so many, from this seed on")
    parser.add_argument(
        "--quiet", action="store_true", help="exit with 1 at the first fault, without shortening it"
    )
    options = parser.parse_args()
    seconds = 0.0
    with TemporaryDirectory() as directory, scenery(Path(directory)) as shared:
        for seed in range(options.seed, options.seed + options.histories):
            outcome = run_history(shared, seed)
            seconds += outcome.simulated_seconds
            if outcome.faults:
                say(f"seed {seed}: {outcome.faults[0]}" if options.quiet else describe(shared, seed))
                sys.exit(1)
            if options.histories == 1:
                say(outcome.trace)
    say(f"no fault in {options.histories} histories of {seconds:,.0f} simulated seconds")


def say(text: str) -> None:
    """Print a text."""
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
