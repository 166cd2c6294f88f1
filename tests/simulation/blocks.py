"""Simulated block caches: readers, an origin that fails and lies, eviction, and a machine that loses power.

What a reader finds present must be what the origin has, and the files never exceed the budget.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

import attrs
from twisted.internet.defer import Deferred

from image_service.common.files.block_cache import block_cache, fetcher
from image_service.common.files.block_cache.block_cache import BlockCache
from image_service.common.files.block_cache.source import (
    GRANULE_BYTES,
    CacheIdentity,
    GranuleDigests,
    OriginFailed,
)
from tests.simulation.disk import PowerFailure, SimulatedDisk
from tests.simulation.events import START, Events, Machine, Outcome
from tests.simulation.steps import choose_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from image_service.core.base_file import BaseFile
    from tests.simulation.steps import Step

GRANULES = 5
MOST_BYTES = 4 * GRANULE_BYTES
WEIGHTS = {"read": 12, "lose_power": 1}
STEPS = 30
CONTENT = Random("blocks").randbytes(GRANULES * GRANULE_BYTES - 5000)
DIGESTS = GranuleDigests(
    b"".join(
        hashlib.sha256(CONTENT[start : start + GRANULE_BYTES]).digest()
        for start in range(0, len(CONTENT), GRANULE_BYTES)
    )
)
IDENTITY = CacheIdentity("https://origin.test/live.iso", '"1"', len(CONTENT))


class SimulatedCondition:
    """A condition that nobody waits for: what is not the case now will not be for this thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], _seconds: float | None = None) -> bool:
        """As `threading.Condition.wait_for`."""
        return predicate()


@attrs.define(eq=False)
class Host:
    """A machine with one process: its reactor, and threads that run one after the other."""

    machine: Machine
    is_in_thread: bool = False

    @contextmanager
    def simulated_threads(self) -> Iterator[None]:
        """Have the cache start simulated threads, which sleep for simulated time."""
        threading = SimpleNamespace(Condition=SimulatedCondition, Thread=self._make_thread)
        with ExitStack() as stack:
            stack.enter_context(patch.object(fetcher, "threading", threading))
            stack.enter_context(patch.object(time, "sleep", self.sleep))
            stack.enter_context(patch.object(time, "monotonic", self.machine.seconds))
            yield

    def _make_thread(self, target: Callable[[], None], **_: object) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: self.machine.callLater(self._delay(), self._run, target))

    def _run(self, target: Callable[[], None]) -> None:
        if self.is_in_thread:  # another one sleeps
            self.machine.callLater(self._delay(), self._run, target)
            return
        self.is_in_thread = True
        try:
            target()
        finally:
            self.is_in_thread = False

    def _delay(self) -> float:
        return self.machine.events.chance.uniform(0.001, 0.05)

    def sleep(self, seconds: float) -> None:
        """Let the reactor go on meanwhile."""
        self.run_until(lambda: False, self.machine.seconds() + seconds)

    def run_until(self, is_over: Callable[[], bool], end: float) -> None:
        """Let time pass."""
        while not is_over() and self.machine.events.run_next(end):
            pass


@attrs.define(eq=False)
class SimulatedSource:
    """The origin, as a `RangeSource`. With digests it may lie."""

    chance: Random
    disk: SimulatedDisk
    may_lie: bool

    def fetch(self, offset: int, target: memoryview) -> None:
        """As `RangeSource.fetch`."""
        self.disk.step()
        if self.chance.random() < 0.15:
            raise OriginFailed("503")
        target[:] = CONTENT[offset : offset + len(target)]
        if self.may_lie and self.chance.random() < 0.15:
            target[self.chance.randrange(len(target))] ^= 1


def make_steps(seed: int) -> list[Step]:
    """Return the reads of a seed, and when the power fails unless it has failed before."""
    return choose_steps(seed, WEIGHTS, STEPS)


def run_blocks(directory: Path, seed: int, steps: Sequence[Step]) -> Outcome:
    """Carry out steps of the history of a seed in an empty directory, up to its first fault."""
    chance = Random(f"blocks {seed}")
    disk, seconds, left = SimulatedDisk(directory, chance), 0.0, list(reversed(steps))
    check = chance.choice((DIGESTS, None))
    source = SimulatedSource(chance, disk, may_lie=check is not None)
    faults: list[str] = []
    for boot in count():
        host = Host(Machine(Events(chance), "host"))
        named = patch.object(block_cache, "read_boot_id", lambda name=f"boot {boot}": name)
        with ExitStack() as ended, host.simulated_threads(), named, suppress(PowerFailure):
            ended.callback(host.sleep, 1)  # its threads end
            cache = BlockCache(directory, MOST_BYTES, host.machine)
            cache.start()
            ended.callback(cache.close)
            ended.callback(cache.end_senders)
            disk.steps_left = chance.randrange(1, 60)
            file = cache.open(IDENTITY, source, check)
            ended.callback(file.close)
            while left and not faults:
                step = left.pop()
                chance.seed(step.draws[0])
                if step.act == "lose_power":
                    disk.steps_left = 1
                    disk.step()
                faults = list(_read(host, file, chance, disk.trace))
                if (taken := cache.allocated_bytes()) > MOST_BYTES:
                    faults.append(f"{taken} bytes are on the disk, more than {MOST_BYTES}")
                disk.step()
                disk.write_back()
        seconds += host.machine.seconds() - START
        if faults or not left:
            break
        disk.restart()
    disk.close()
    return Outcome("\n".join(disk.trace), tuple(faults), seconds)


def _read(host: Host, file: BaseFile, chance: Random, trace: list[str]) -> Iterator[str]:
    """Read a range, as a sender does: what is present is sent in the same turn."""
    start = chance.randrange(len(CONTENT))
    stop = min(len(CONTENT), start + chance.randrange(1, 2 * GRANULE_BYTES))
    residency: Any = file.residency
    outcome: list[tuple[object, bytes]] = []

    def send(result: object) -> None:
        length = residency.resident_bytes(file, start, stop - start)
        outcome.append((result, os.pread(file.descriptor, length, start)))

    Deferred.fromCoroutine(residency.prefetch(file, start, stop - start)).addBoth(send)
    host.run_until(lambda: bool(outcome), host.machine.seconds() + 60)
    if not outcome:
        yield f"{start}-{stop} does not arrive"
        return
    ((result, content),) = outcome
    trace.append(f"{host.machine.seconds() - START:8.3f} {start}-{stop}: {len(content)} bytes are present")
    if result is None and not content:
        yield f"{start}-{stop} has arrived, and nothing of it is present"
    if content != CONTENT[start : start + len(content)]:
        yield f"of {start}-{stop}, {len(content)} bytes are present, and wrong"
