"""The throughput of three replicas compared with one of them, all with one PostgreSQL database.

Each gets a share of a core, and no balancer is in between: all of that would compete for the cores of one
machine. So this shows that replicas do not hold each other up, not what three machines reach.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.cores import bounding_group, confine
from bench.postgres import find_programs, running_postgres
from bench.replay import replay_at
from bench.results import Target
from bench.servers import SERVICE, LeftOut
from bench.study import Figure
from bench.workers import range_scripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.servers import Server
    from bench.stage import Stage

_COUNT = 3


def study_replicas(stage: Stage) -> Iterator[Figure]:
    """Compare throughput of 64 KiB ranges of three replicas and of the first one."""
    cores = len(os.sched_getaffinity(0))
    share = min(1.0, cores / (2 * _COUNT))  # the rest is for the load generator and the machine
    with ExitStack() as stack:
        services = _start(stack, stage, share)
        places = [(service.urls["http"], script) for service in services for script in range_scripts(service)]
        rates: tuple[list[float], list[float]] = ([], [])
        for number in range(stage.effort.rounds + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                traffic = replay_at(
                    places if which else places[: len(places) // _COUNT],
                    stage.effort.seconds if number else 1,
                    ahead=2,
                )
                rates[which].extend([traffic.requests / traffic.seconds] if number else [])
    one, three = rates
    yield Figure(SERVICE, "1 replica", "requests/s", one)
    yield Figure(SERVICE, f"{_COUNT} replicas", "requests/s", three)
    gains = [after / before for before, after in zip(one, three, strict=True)]
    yield Figure(SERVICE, f"{_COUNT} replicas ÷ 1", "", gains, Target(at_least=2.5))
    yield Figure(SERVICE, f"share of a core for each replica, of {cores} cores", "", [share])


def _start(stack: ExitStack, stage: Stage, share: float) -> Sequence[Server]:
    programs = find_programs()
    if programs is None:
        raise LeftOut("PostgreSQL is not installed")
    postgres = stack.enter_context(running_postgres(programs))
    secret = stage.directory / "instance-secret"
    secret.write_text(f"{secrets.token_hex(32)}\n")
    environment = {"DATABASE_URL": postgres.create_database(), "INSTANCE_SECRET_FILE": str(secret)}
    services = []
    for number in range(_COUNT):
        group = bounding_group(stack, f"replica-{number}", share)
        service = stage.start_service(stack, environment, stage.directory / f"replica-{number}")
        if group is not None and service.pid is not None:
            confine(service.pid, group)
        services.append(service)
    return services
