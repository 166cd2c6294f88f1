"""The throughput of two workers compared with one.

If there are too few cores for two workers and the load generator, each worker gets a share of a core, alone
or beside the other: otherwise the workers would compete with the generator.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bench.cores import bounding_group, confine, total_cpu_seconds
from bench.replay import pipelined, prepare, replay, request
from bench.results import Target
from bench.servers import SERVICE
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.replay import Exchange
    from bench.servers import Server
    from bench.stage import Stage

_CONNECTIONS = 16
_PIPELINED = 16
_AHEAD = 2
_RANGE_BYTES = 64 * 1024
_COUNTS = (1, 2)
_MICROSECONDS = 1e6


@attrs.frozen
class _WorkerSample:
    """One measurement of one service.

    Args:
        rate: requests per second.
        server: microseconds of CPU time of its processes per request.
        generator: same, of this process.
        others: cores used by all other processes.
    """

    rate: float
    server: float
    generator: float
    others: float


def study_workers(stage: Stage) -> Iterator[Figure]:
    """Compare throughput of 64 KiB ranges with two workers and with one."""
    share = min(1.0, len(os.sched_getaffinity(0)) / (2 * max(_COUNTS)))
    with ExitStack() as stack:
        bounded = bounding_group(stack, "try", share) is not None
        services = [_service(stack, stage, count, share) for count in _COUNTS]
        scripts = [range_scripts(service) for service in services]
        samples: list[list[_WorkerSample]] = [[], []]
        for number in range(stage.effort.rounds + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                sample = _measure(services[which], scripts[which], stage.effort.seconds if number else 1)
                samples[which] += [sample] if number else []
    yield from _figures(*samples)
    why = "" if bounded else ": not bounded, no control group can be made"
    yield Figure(SERVICE, f"share of a core for each worker{why}", "", [share if bounded else 1.0])


def _figures(one: Sequence[_WorkerSample], two: Sequence[_WorkerSample]) -> Iterator[Figure]:
    both = list(zip(one, two, strict=True))
    for count, samples in zip(_COUNTS, (one, two), strict=True):
        yield Figure(SERVICE, f"WORKERS={count}", "requests/s", [sample.rate for sample in samples])
        yield Figure(
            SERVICE, f"WORKERS={count}, CPU time", "us per request", [sample.server for sample in samples]
        )
    gains = [second.rate / first.rate for first, second in both]
    yield Figure(SERVICE, "WORKERS=2 ÷ WORKERS=1", "", gains, Target(at_least=1.6))
    costs = [second.server / first.server for first, second in both]
    yield Figure(SERVICE, "WORKERS=2 ÷ WORKERS=1, CPU time of a request", "", costs)
    samples = [*one, *two]
    generator = [sample.generator for sample in samples]
    yield Figure(SERVICE, "CPU time of the load generator", "us per request", generator)
    others = [sample.others for sample in samples]
    yield Figure(SERVICE, "cores used by everything else", "", others)


def _service(stack: ExitStack, stage: Stage, count: int, share: float) -> Server:
    """Start a service whose workers get a share of a core each, if control groups can be made."""
    groups = [bounding_group(stack, f"{count}-{number}", share) for number in range(count)]
    service = stage.start_service(stack, {"WORKERS": str(count)}, stage.directory / f"workers-{count}")
    for pid, group in zip(_worker_pids(service.pid or 0), groups, strict=True):
        if group is not None:
            confine(pid, group)
    return service


def _worker_pids(pid: int) -> Sequence[int]:
    """Return the workers of a supervisor; of a service without workers, itself."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if _is_worker(child)] or [pid]


def _is_worker(child: str) -> bool:
    with suppress(FileNotFoundError):  # it has exited
        return b"image_service.app.processes" in Path("/proc", child, "cmdline").read_bytes()
    return False


def range_scripts(service: Server) -> Sequence[Sequence[Exchange]]:
    """Return what each connection to a service sends: pipelined requests for ranges of 64 KiB."""
    url = service.urls["http"]
    chance = random.Random(64)  # noqa: S311 - no secret
    places = service.size_bytes("http") // _RANGE_BYTES
    scripts = []
    for _ in range(_CONNECTIONS):
        firsts = [chance.randrange(places) * _RANGE_BYTES for _ in range(_PIPELINED)]
        requests = [request(url, first=first, length=_RANGE_BYTES) for first in firsts]
        scripts.append([pipelined(prepare(url, requests))])
    return scripts


def _measure(service: Server, scripts: Sequence[Sequence[Exchange]], seconds: int) -> _WorkerSample:
    server, own, everything = service.cpu_seconds() or 0.0, time.process_time(), total_cpu_seconds()
    traffic = replay(service.urls["http"], scripts, seconds, ahead=_AHEAD)
    server, own = (service.cpu_seconds() or 0.0) - server, time.process_time() - own
    others = max(0.0, total_cpu_seconds() - everything - server - own)
    a_request = _MICROSECONDS / traffic.requests
    return _WorkerSample(
        traffic.requests / traffic.seconds, server * a_request, own * a_request, others / traffic.seconds
    )
