"""Memory growth over many requests: ``python -m bench.soak``.

Random ranges and new infra-envs in equal parts; after each part the memory of the process is measured.
Before, caches are filled with more infra-envs than they hold, and more bytes than ``SNAPSHOT_CACHE_BYTES``
allows. The verdict is the slope of a line through the measurements.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from bench import machine
from bench.first_requests import connect, request_new_infra_env, start_upstream, upstream_environment
from bench.replay import pipelined, prepare, replay, request
from bench.report import lines
from bench.results import Document, Target
from bench.servers import SERVICE, stop_on_sigterm
from bench.stage import Effort, Stage
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.replay import Exchange
    from bench.servers import Server

_MIB = 1024 * 1024
_RANGE_BYTES = 64 * 1024
_CONNECTIONS = 16
_CACHE_BYTES = 32 * _MIB


class MemoryReading(TypedDict):
    """The requests so far, and the memory then."""

    ranges: int
    infra_envs: int
    memory_mib: float


def main() -> None:
    """Measure, and print the readings and the verdict."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    add = parser.add_argument
    add("--ranges", type=int, default=1_000_000, help="of 64 KiB (%(default)s)")
    add("--infra-envs", type=int, default=20_000, help="(%(default)s)")
    add("--warm-up", type=int, default=17_000, help="infra-envs before that (%(default)s)")
    add("--config-kib", type=int, default=4, help="Ignition config of each, in KiB (%(default)s)")
    add("--parts", type=int, default=50, help="after each of which memory is read (%(default)s)")
    add("--megabytes", type=int, default=970, help="size of the base image, in MiB (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write everything that was read")
    options = parser.parse_args()
    stop_on_sigterm()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-soak-")))
        stage = Stage(Effort(megabytes=options.megabytes), directory, stack)
        described = machine.describe(directory)
        readings = []
        upstream = start_upstream(stack, stage, options.config_kib)
        environment = {**upstream_environment(upstream), "SNAPSHOT_CACHE_BYTES": str(_CACHE_BYTES)}
        service = stage.start_service(stack, environment)
        request_new_infra_envs(service, stage.image, options.warm_up)
        for reading in soak(service, stage.image, options.ranges, options.infra_envs, options.parts):
            print(json.dumps(reading), flush=True)
            readings.append(reading)
    findings = [figure.of("soak") for figure in verdict(readings)]
    print("\n".join(lines(Document(machine=described, comparisons=[], findings=findings))))
    if options.json:
        options.json.write_text(
            json.dumps({"machine": described, "readings": readings, "findings": findings})
        )


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
    """Return memory, its growth from the first to the last reading, and the slope of a line through them."""
    memory = [reading["memory_mib"] for reading in readings]
    hundredth = [reading["ranges"] / 100_000 for reading in readings]
    slope = statistics.linear_regression(hundredth, memory).slope
    yield Figure(SERVICE, "memory (PSS), caches full", "MiB", memory)
    yield Figure(SERVICE, "from first to last of that", "MiB", [memory[-1] - memory[0]])
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


if __name__ == "__main__":
    main()
