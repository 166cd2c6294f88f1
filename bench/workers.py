"""What a second worker gains, with a load generator that leaves the cores to the server."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.replay import learn, pipelined, replay, request
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


def study_workers(stage: Stage) -> Iterator[Figure]:
    """Throughput of 64 KiB ranges with two workers, divided by that with one."""
    with ExitStack() as stack:
        services = [_service(stack, stage, count) for count in _COUNTS]
        scripts = [_scripts(service) for service in services]
        rates: list[list[float]] = [[], []]
        shares: list[float] = []
        for number in range(stage.effort.rounds + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                rate, share = _lap(services[which], scripts[which], stage.effort.seconds if number else 1)
                if number:
                    rates[which].append(rate)
                    shares.append(share)
    gains = [two / one for one, two in zip(*rates, strict=True)]
    for count, values in zip(_COUNTS, rates, strict=True):
        yield Figure(SERVICE, f"WORKERS={count}", "requests/s", values)
    yield Figure(SERVICE, "WORKERS=2 ÷ WORKERS=1", "", gains, Target(at_least=1.6))
    yield Figure("load generator", "its own CPU time", "us a request", shares)


def _service(stack: ExitStack, stage: Stage, count: int) -> Server:
    return stage.start_service(stack, {"WORKERS": str(count)}, stage.directory / f"workers-{count}")


def _scripts(service: Server) -> Sequence[Sequence[Exchange]]:
    url = service.urls["http"]
    chance = random.Random(64)  # noqa: S311 - no secret
    places = service.size_bytes("http") // _RANGE_BYTES
    scripts = []
    for _ in range(_CONNECTIONS):
        firsts = [chance.randrange(places) * _RANGE_BYTES for _ in range(_PIPELINED)]
        requests = [request(url, first=first, length=_RANGE_BYTES) for first in firsts]
        scripts.append([pipelined(learn(url, requests))])
    return scripts


def _lap(service: Server, scripts: Sequence[Sequence[Exchange]], seconds: int) -> tuple[float, float]:
    """Requests a second, and microseconds of CPU time that this process took for each."""
    before = time.process_time()
    traffic = replay(service.urls["http"], scripts, seconds, ahead=_AHEAD)
    own = time.process_time() - before
    return traffic.requests / traffic.seconds, own * 1e6 / traffic.requests
