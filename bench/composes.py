"""Composes by the one worker of a jobs role.

The bases are the role's samples: an ISO of a few KiB and a disk of 32 MiB. A first compose of each kind does
not count. Then composes are ordered one after the other, each when the one before has ended, and then many at
once.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import cpu_seconds
from bench.results import Target
from bench.study import Figure
from tests.jobs.running_role import FRESH_JOBS, running_role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stage import Stage
    from tests.jobs.running_role import RunningRole

_ROLE = "jobs role"
_KINDS = {
    "live-installer": ("ISO", Target(at_most=3), Target(at_least=60)),
    "guest-image": ("disk", Target(at_most=15), Target(at_least=6)),
}
"""Image types: what they are, seconds from the order to the end, and how many in a minute."""


def study_composes(stage: Stage, *, alone: int, at_once: int) -> Iterator[Figure]:
    """Measure so many composes of each kind one after the other, and so many at once."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as directory,
        running_role(Path(directory), FRESH_JOBS) as role,
    ):
        for image_type in _KINDS:
            yield from _figures(role, image_type, alone, at_once)


def _figures(role: RunningRole, image_type: str, alone: int, at_once: int) -> Iterator[Figure]:
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
