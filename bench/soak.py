"""Memory growth over many requests.

Random ranges and new infra-envs in equal parts; after each part the memory of the process is measured.
Before, caches are filled with more infra-envs than they hold, and more bytes than ``SNAPSHOT_CACHE_BYTES``
allows. The verdict is the slope of a line through the measurements.
"""

from __future__ import annotations

import random
import statistics
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, TypedDict

from bench.first_requests import connect, request_new_infra_env, start_upstream, upstream_environment
from bench.replay import pipelined, prepare, replay, request
from bench.results import Target
from bench.servers import SERVICE
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.replay import Exchange
    from bench.servers import Server
    from bench.stage import Stage

_MIB = 1024 * 1024
_RANGE_BYTES = 64 * 1024
_CONNECTIONS = 16
_CACHE_BYTES = 32 * _MIB
_CONFIG_KIB = 4


class MemoryReading(TypedDict):
    """The requests so far, and the memory then."""

    ranges: int
    infra_envs: int
    memory_mib: float


def study_memory(stage: Stage, *, ranges: int, infra_envs: int, warm_up: int, parts: int) -> Iterator[Figure]:
    """Measure memory while caches are full.

    Args:
        stage: of the run.
        ranges: of 64 KiB.
        infra_envs: new ones.
        warm_up: infra-envs before that.
        parts: after each of which memory is read.
    """
    with ExitStack() as stack:
        upstream = start_upstream(stack, stage, _CONFIG_KIB)
        environment = {**upstream_environment(upstream), "SNAPSHOT_CACHE_BYTES": str(_CACHE_BYTES)}
        service = stage.start_service(stack, environment)
        request_new_infra_envs(service, stage.image, warm_up)
        readings = list(soak(service, stage.image, ranges, infra_envs, parts))
    yield from verdict(readings)


def soak(service: Server, image: Path, ranges: int, infra_envs: int, parts: int) -> Iterator[MemoryReading]:
    """Request ranges and new infra-envs in equal parts, and yield the memory after each part."""
    script = _script(service)
    sent = {"ranges": 0, "infra_envs": 0}
    for part in range(1, parts + 1):
        count = ranges * part // parts - sent["ranges"]
        if count > 0:
            sent["ranges"] += replay(service.urls["http"], [script] * _CONNECTIONS, most=count).requests
        sent["infra_envs"] += request_new_infra_envs(service, image, infra_envs // parts)
        memory = service.memory_bytes() or 0
        yield MemoryReading(ranges=sent["ranges"], infra_envs=sent["infra_envs"], memory_mib=memory / _MIB)


def verdict(readings: Sequence[MemoryReading]) -> Iterator[Figure]:
    """Return memory at the first and the last reading, and the slope of a line through all of them."""
    memory = [reading["memory_mib"] for reading in readings]
    hundredth = [reading["ranges"] / 100_000 for reading in readings]
    slope = statistics.linear_regression(hundredth, memory).slope
    yield Figure(SERVICE, "memory (PSS), caches full, at first", "MiB", [memory[0]])
    yield Figure(SERVICE, "the same, at last", "MiB", [memory[-1]])
    yield Figure(
        SERVICE, "slope, for 100,000 ranges and their share of infra-envs", "MiB", [slope], Target(at_most=1)
    )


def _script(service: Server) -> Sequence[Exchange]:
    """Return random ranges of the image, eight together."""
    url, size_bytes = service.urls["http"], service.size_bytes("http")
    chance = random.Random(1)  # noqa: S311 - no secret
    firsts = [chance.randrange(size_bytes // _RANGE_BYTES) * _RANGE_BYTES for _ in range(512)]
    prepared = prepare(url, [request(url, first=first, length=_RANGE_BYTES) for first in firsts])
    return [pipelined(prepared[number : number + 8]) for number in range(0, len(prepared), 8)]


def request_new_infra_envs(service: Server, image: Path, count: int) -> int:
    """Request images of `count` new infra-envs, and return the number."""
    with closing(connect(service.urls["http"])) as client:
        for _ in range(count):
            request_new_infra_env(client, image)
    return count
