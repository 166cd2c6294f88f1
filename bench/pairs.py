"""Two ways to do the same work, measured in turn and in changing order: the ratio of a pair counts."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from typing import TYPE_CHECKING

import attrs

from bench.results import Target
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


AT_LEAST_AS_FAST = Target(at_least=1)
NO_MORE_CPU = Target(at_most=1.1)


def _do_nothing() -> None:
    pass


@attrs.frozen
class Way:
    """A way to do the work.

    Args:
        name: of the program that does it.
        work: does it, in this process or in those that it waits for.
        prepare: called before, and not measured.
    """

    name: str
    work: Callable[[], object]
    prepare: Callable[[], object] = _do_nothing

    def measure(self) -> tuple[float, float]:
        """Return seconds and CPU seconds."""
        self.prepare()
        cpu, started_at = _cpu_seconds(), time.monotonic()
        self.work()
        return time.monotonic() - started_at, _cpu_seconds() - cpu


def compare(
    rounds: int,
    own: Way,
    peer: Way,
    throughput_target: Target = AT_LEAST_AS_FAST,
    cpu_target: Target = NO_MORE_CPU,
) -> Iterator[Figure]:
    """Measure pairs, after a first one that does not count."""
    own.measure()
    peer.measure()
    pairs = []
    for number in range(rounds):
        if number % 2:
            pairs.append((own.measure(), peer.measure()))
        else:
            theirs = peer.measure()
            pairs.append((own.measure(), theirs))
    for way, which in ((own, 0), (peer, 1)):
        yield Figure(way.name, "time", "s", [pair[which][0] for pair in pairs])
    for way, which in ((own, 0), (peer, 1)):
        yield Figure(way.name, "CPU time", "s", [pair[which][1] for pair in pairs])
    throughput = [theirs[0] / ours[0] for ours, theirs in pairs]
    yield Figure(own.name, f"throughput ÷ {peer.name}", "", throughput, throughput_target)
    cpu = [ours[1] / theirs[1] for ours, theirs in pairs]
    yield Figure(own.name, f"CPU time ÷ {peer.name}", "", cpu, cpu_target)


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command with more variables, and drop its output; raises CalledProcessError if it fails."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})


def _cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
