"""Composes by the one worker of a jobs role: ``python -m bench.composes``.

The bases are the role's samples: an ISO of a few KiB and a disk of 32 MiB. A first compose of each kind does
not count. Then composes are ordered one after the other, each when the one before has ended, and then many at
once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine
from bench.processes import cpu_seconds
from bench.report import show
from bench.results import Document, Target
from bench.servers import stop_on_sigterm
from bench.study import Figure
from tests.jobs.running_role import FRESH_JOBS, running_role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.jobs.running_role import RunningRole

_ROLE = "jobs role"
_KINDS = {
    "live-installer": ("ISO", Target(at_most=3), Target(at_least=60)),
    "guest-image": ("disk", Target(at_most=15), Target(at_least=6)),
}
"""Image types: what they are, seconds from the order to the end, and how many in a minute."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.composes", description=__doc__)
    add = parser.add_argument
    add("--alone", type=int, default=5, help="composes one after the other (%(default)s)")
    add("--at-once", type=int, default=30, help="composes at once (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args()
    stop_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        described = machine.describe(Path(directory))
        with running_role(Path(directory), FRESH_JOBS) as role:
            findings = [
                figure.of("composes by one worker")
                for image_type in _KINDS
                for figure in figures(role, image_type, options.alone, options.at_once)
            ]
    show(Document(machine=described, comparisons=[], findings=findings), options.json)


def figures(role: RunningRole, image_type: str, alone: int, at_once: int) -> Iterator[Figure]:
    """Measure composes of an image type."""
    name, most_seconds, least_rate = _KINDS[image_type]
    _seconds_of(role, image_type, 1)
    waits = [_seconds_of(role, image_type, 1) for _ in range(alone)]
    yield Figure(_ROLE, f"{name}: order to end, alone", "s", waits, most_seconds)
    before = cpu_seconds(role.process.pid)
    rate = at_once * 60 / _seconds_of(role, image_type, at_once)
    yield Figure(_ROLE, f"{name}: {at_once} at once, in a minute", "", [rate], least_rate)
    spent = (cpu_seconds(role.process.pid) - before) / at_once
    yield Figure(_ROLE, f"{name}: CPU time of the role, of each", "s", [spent])


def _seconds_of(role: RunningRole, image_type: str, number: int) -> float:
    """Return how long it takes until so many composes, ordered at once, have ended."""
    begun = time.monotonic()
    started = [role.start(image_type) for _ in range(number)]
    for compose_id in started:
        status = role.wait_until_ended(compose_id)
        if status["status"] != "success":
            raise RuntimeError(f"a compose has failed: {status}")
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
