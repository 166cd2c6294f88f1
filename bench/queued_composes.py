"""Composes that wait in a queue: the memory of the role, its restart, and four workers that take them.

The role and its engine have one core. Its bases are the role's samples; each compose is a disk, which needs a
worker: the role makes ISOs by itself.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cores import bounding_group, confine
from bench.results import Target
from bench.study import Figure
from tests.jobs.noisy_tenants import peak_bytes
from tests.jobs.running_role import FRESH_JOBS, running_role
from tests.jobs.worker.workers import real_toolkit, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stage import Stage
    from tests.jobs.running_role import RunningRole

_ROLE = "jobs role"
_MIB = 1 << 20
_MOST_MIB = 512
_MOST_RESTART_SECONDS = 5
_WORKERS = 4
_CLIENTS = 4
_LOOK_SECONDS = 1.0
_KIND = "minimal-raw"


def study_queue(stage: Stage, *, waiting: int, seconds: float) -> Iterator[Figure]:
    """Queue so many composes without a worker, restart the role, and let workers take them for so long."""
    limits = {
        "JOBS_WORKER_SLOTS": "0",
        "JOBS_MAX_QUEUED": str(waiting),
        "JOBS_MAX_COMPOSES": str(2 * waiting),
        "JOBS_MAX_BYTES": str(1 << 50),  # each compose reserves the bytes of its disk
    }
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as name, ExitStack() as stack:
        directory = Path(name)
        group = bounding_group(stack, "role", 1.0)

        @contextmanager
        def running() -> Iterator[RunningRole]:
            if group is not None:
                confine(os.getpid(), group)  # what it starts is in the group, too
            with running_role(directory, FRESH_JOBS, **limits) as role:
                if group is not None:
                    confine(os.getpid(), group.parent)
                yield role

        with running() as role:
            few = waiting // 10
            yield Figure(_ROLE, f"{few} orders, each", "s", [_queue(role, few) / few])
            yield from _memory(role, f"with {few} queued")
            rest = waiting - few
            yield Figure(_ROLE, f"{rest} more orders, each", "s", [_queue(role, rest) / rest])
            yield Figure(_ROLE, f"until all {waiting} wait for a worker", "s", [_settle(role, waiting)])
            yield from _memory(role, f"with {waiting} queued")
        begun = time.monotonic()
        with running() as role:
            target = Target(at_most=_MOST_RESTART_SECONDS)
            yield Figure(_ROLE, f"restart with {waiting} queued", "s", [time.monotonic() - begun], target)
            toolkit = real_toolkit(directory)
            with ExitStack() as workers:
                for number in range(_WORKERS):
                    place = directory / f"worker-{number}"
                    place.mkdir()
                    workers.enter_context(running_worker(role.url, place, toolkit, "--heartbeat=5"))
                time.sleep(seconds)
                ended = waiting - _pending(role)
            yield Figure(_ROLE, f"composes by {_WORKERS} workers, in a minute", "", [ended * 60 / seconds])
            yield from _memory(role, f"after {ended} of them")


def _queue(role: RunningRole, number: int) -> float:
    """Order so many images, and return the seconds that it took."""
    begun = time.monotonic()
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(lambda _: role.start(_KIND), range(number)))
    return time.monotonic() - begun


def _settle(role: RunningRole, waiting: int) -> float:
    """Wait until all jobs wait for a worker, and return the seconds that it took."""
    begun = time.monotonic()
    queued = "SELECT count(*) FROM jobs WHERE state = 'queued'"
    with closing(sqlite3.connect(role.data_dir / "jobs.sqlite")) as rows:
        while rows.execute(queued).fetchone()[0] < waiting:
            time.sleep(_LOOK_SECONDS)
    return time.monotonic() - begun


def _pending(role: RunningRole) -> int:
    return int(role.get("/composes/?size=1&status=pending").json()["total"])


def _memory(role: RunningRole, when: str) -> Iterator[Figure]:
    most = peak_bytes(role)
    target = Target(at_most=_MOST_MIB)
    yield Figure(_ROLE, f"memory of role and engine {when}", "MiB", [sum(most.values()) / _MIB], target)
    yield Figure(_ROLE, f"memory of the engine {when}", "MiB", [most["engine"] / _MIB])
