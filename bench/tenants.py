"""A quiet tenant of the jobs role beside four at full speed.

Four tenants send valid and invalid orders, uploads, cancellations, lists and slow connections, from a process
that gets half of the cores. A fifth orders one image after another, waits for it and downloads it: first
alone, then beside them. It sends and reads from this process, and is measured by its own clock. While it
is alone, a loop takes the share of the other process: the noise may cost what the role does for it, not
the cores of those who make it.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import attrs

from bench.cores import bounding_group, confine
from bench.results import Target
from bench.study import Figure
from tests.jobs.noisy_tenants import (
    MOST_BYTES,
    MOST_BYTES_WITH_ENGINE,
    MOST_ROLE_BYTES,
    VARIABLES,
    QuietTenant,
    StoredBytes,
    noisy_clients,
    peak_bytes,
)
from tests.jobs.running_role import FRESH_JOBS
from tests.jobs.tenant_clients import running_with_tenants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.stage import Stage
    from tests.jobs.running_role import RunningRole

_ROLE = "jobs role"
_MIB = 1 << 20
_END_SECONDS = 60.0


@attrs.frozen
class Measurement:
    """What was measured.

    Args:
        alone: seconds from an order to the end of its download, without noise, on the cores that it leaves.
        beside: the same, beside the noise.
        requests: seconds of the quiet tenant's requests beside the noise.
        memory: the most bytes of the role and of its engine.
        stored: the most bytes that the object store has had of one tenant.
        share: of a core, for the noise; None: it was not limited.
    """

    alone: Sequence[float]
    beside: Sequence[float]
    requests: Sequence[float]
    memory: dict[str, int]
    stored: int
    share: float | None


def study_tenants(stage: Stage, *, images: int, seconds: float, clients: int) -> Iterator[Figure]:
    """Measure a role; the numbers are those of `measure`."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as directory,
        running_with_tenants(Path(directory), FRESH_JOBS, **VARIABLES) as role,
    ):
        measured = measure(role, images, seconds, clients)
    yield from figures(measured)


def measure(role: RunningRole, images: int, seconds: float, clients: int) -> Measurement:
    """Measure a role.

    Args:
        images: that the quiet tenant gets without noise, after a first one.
        seconds: of noise.
        clients: of each noisy tenant.
    """
    quiet, stored = QuietTenant(role), StoredBytes(role.data_dir)
    quiet.make_image()  # which unpacks the base disk
    with _beside(_loop):
        alone = [_seconds_of(quiet) for _ in range(images)]
    quiet.seconds.clear()
    beside = []
    noise = partial(_make_noise, role, clients)
    with _beside(noise) as share, ThreadPoolExecutor(1) as sampler:
        ended = Event()
        sampling = sampler.submit(stored.sample_until, ended)
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                beside.append(_seconds_of(quiet))
        finally:
            ended.set()
        sampling.result()
        memory = peak_bytes(role)
    return Measurement(alone, beside, quiet.seconds, memory, max(stored.most.values()), share)


def figures(measured: Measurement) -> Iterator[Figure]:
    """Return the figures and their targets."""
    usual = sorted(measured.alone)[len(measured.alone) // 2]
    slow = sorted(measured.requests)[len(measured.requests) * 99 // 100]
    memory, most = measured.memory, f"of at most {MOST_BYTES // _MIB} MiB"
    yield Figure(_ROLE, "order to download, alone", "s", measured.alone)
    yield Figure(
        _ROLE, "beside the noise ÷ alone", "", [each / usual for each in measured.beside], Target(at_most=3)
    )
    yield Figure(_ROLE, "requests, 99th percentile", "s", [slow], Target(at_most=3))
    yield Figure(_ROLE, "requests, slowest", "s", [max(measured.requests)])
    yield Figure(_ROLE, "memory", "MiB", [memory["role"] / _MIB], Target(at_most=MOST_ROLE_BYTES / _MIB))
    together = Target(at_most=MOST_BYTES_WITH_ENGINE / _MIB)
    yield Figure(_ROLE, "memory with the engine", "MiB", [sum(memory.values()) / _MIB], together)
    yield Figure(
        _ROLE,
        f"stored by one tenant, {most}",
        "MiB",
        [measured.stored / _MIB],
        Target(at_most=MOST_BYTES / _MIB),
    )
    if measured.share is not None:
        yield Figure(_ROLE, "share of a core for the noise", "", [measured.share])


def _seconds_of(quiet: QuietTenant) -> float:
    begun = time.monotonic()
    quiet.make_image()
    return time.monotonic() - begun


@contextmanager
def _beside(run: Callable[[Event], None]) -> Iterator[float | None]:
    """Run a function in another process until the end; yield its share of a core, None: all.

    Args:
        run: called with an event, which is set at the end.
    """
    forking = multiprocessing.get_context("fork")
    begin, ended = forking.Event(), forking.Event()
    process = forking.Process(target=_run_after, args=(begin, run, ended))
    share = len(os.sched_getaffinity(0)) / 2
    with ExitStack() as stack:
        group = bounding_group(stack, "noise", share)
        process.start()
        stack.callback(process.join)
        if group is not None:
            confine(process.pid or 0, group)
        begin.set()
        try:
            yield None if group is None else share
        finally:
            ended.set()
            process.join(_END_SECONDS)
            process.kill()
    if process.exitcode:
        raise RuntimeError(
            "a noisy tenant got an answer that no client should get, or did not end; see above"
        )


def _run_after(begin: Event, run: Callable[[Event], None], ended: Event) -> None:
    begin.wait()
    run(ended)


def _loop(ended: Event) -> None:
    """Use half of the cores: a hash is computed without the interpreter's lock."""
    block = bytes(_MIB)

    def work() -> None:
        while not ended.is_set():
            sha256(block)

    threads = len(os.sched_getaffinity(0)) // 2
    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(work) for _ in range(threads)]:
            each.result()


def _make_noise(role: RunningRole, number: int, ended: Event) -> None:
    clients = noisy_clients(role, number)
    with ThreadPoolExecutor(len(clients)) as threads:
        for each in [threads.submit(client.run, ended) for client in clients]:
            each.result()
    if faults := [fault for client in clients for fault in client.faults]:
        raise SystemExit("\n".join(faults))
