"""Many slow clients: whether all progress, what they cost, and how fast a new client is served meanwhile.

A reader is a client of the load test that downloads 10 KiB per second. Its receive buffer is small, so that
the bytes that it does not read stay with the server.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from bench import processes
from bench.first_requests import connect, send_get
from bench.load import load_test
from bench.results import Target
from bench.servers import OPEN_FILES, SERVICE
from bench.study import Figure
from image_service.loadtest.histogram import DurationHistogram

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.load import LoadTestProcess
    from bench.servers import Server
    from bench.stage import Stage

READ_BYTES = 10 * 1024
_MEMORY_TARGETS_MIB = {"http": 128, "https": 512}
_JUDGED_READERS = 10_000
_BATCH = 1_000
"""Readers of one process; the next process starts when these have connected."""
_BATCH_SECONDS = 60
"""Limit of that; without the server's process id, the pause after each."""
_POLL_SECONDS = 0.1
_KIB = 1024
_MIB = _KIB * _KIB


def study_slow_readers(scheme: str, index: int, stage: Stage) -> Iterator[Figure]:
    """Connect readers to each server in turn; `index` selects one of the effort's numbers of readers."""
    count = stage.effort.readers[index]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES), hard))
    with ExitStack() as stack:
        for server in stage.start_servers(stack, "slow-readers"):
            if scheme in server.urls:
                yield from _study(server, scheme, count, stage.effort.reader_seconds, stage.directory)


def _study(server: Server, scheme: str, count: int, seconds: int, directory: Path) -> Iterator[Figure]:
    url = server.urls[scheme]
    _new_client_seconds(url)  # memory of the first request is not a cost of the readers
    idle, idle_sockets = server.memory_bytes(), processes.socket_bytes()
    latencies = DurationHistogram()
    with ExitStack() as stack:
        readers = _start_readers(stack, server, scheme, count, directory)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            latencies.record(_new_client_seconds(url))
            time.sleep(_POLL_SECONDS)
        memory, sockets = server.memory_bytes(), processes.socket_bytes()
        for batch in readers:
            batch.interrupt()
        reports = [batch.read_report() for batch in readers]
    judged = server.name == SERVICE
    strict = judged and count >= _JUDGED_READERS
    errors = Counter({"timeout": 0})
    for report in reports:
        errors.update(report["counts"]["errors"])
        errors["refused"] += report["counts"]["refusals"]
    stuck = errors["timeout"]
    broken = errors.total() - stuck
    rates = [
        report["counts"]["bytes"] / report["plan"]["clients"] / report["seconds"] / _KIB for report in reports
    ]
    yield Figure(server.name, "refused or broken", "", [broken], _at_most(0, applies=judged))
    yield Figure(server.name, "without progress", "", [stuck], _at_most(0, applies=judged))
    yield Figure(server.name, "read by each reader", "KiB/s", rates)
    if memory is not None and idle is not None:
        target = _at_most(_MEMORY_TARGETS_MIB[scheme], applies=strict)
        yield Figure(server.name, "memory above idle (PSS)", "MiB", [(memory - idle) / _MIB], target)
    yield Figure(server.name, "kernel's socket memory, both ends", "MiB", [(sockets - idle_sockets) / _MIB])
    shown = [
        seconds * 1000 for seconds in (latencies.percentile(50), latencies.percentile(1), latencies.largest)
    ]
    yield Figure(server.name, "a new client's 64 KiB range", "ms", shown, _at_most(20, applies=strict))


def _start_readers(
    stack: ExitStack, server: Server, scheme: str, count: int, directory: Path
) -> list[LoadTestProcess]:
    """Start readers in batches, and return when all have connected, or do not within a time."""
    readers = []
    options = (f"--rate={READ_BYTES}B/s", "--profile=download", "--duration=1h", "--timeout=60s")
    connected = processes.open_descriptors(server.pid) if server.pid is not None else 0
    for first in range(0, count, _BATCH):
        clients = min(_BATCH, count - first)
        report = directory / f"readers-{first}"
        readers.append(
            stack.enter_context(load_test(server.urls[scheme], report, f"--clients={clients}", *options))
        )
        connected += clients
        deadline = time.monotonic() + _BATCH_SECONDS
        while time.monotonic() < deadline and (
            server.pid is None or processes.open_descriptors(server.pid) < connected
        ):
            time.sleep(_POLL_SECONDS)
    return readers


def _new_client_seconds(url: str) -> float:
    """Return the time from the connect to the last byte of a range."""
    started_at = time.perf_counter()
    with closing(connect(url)) as connection:
        send_get(connection, url, {"Range": "bytes=0-65535"})
    return time.perf_counter() - started_at


def _at_most(limit: float, *, applies: bool) -> Target:
    return Target(at_most=limit) if applies else Target()
