"""The cost of a first request, with many infra-envs stored and many base images.

Two services run beside each other, one with few of both and one with many, each with a SQLite file or a
PostgreSQL server of its own. New infra-envs are requested from both in turns; the CPU time is that of the
service and of its PostgreSQL server.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import sqlalchemy as sa

from bench import processes
from bench.first_requests import connect, request_new_infra_env, start_upstream, upstream_environment
from bench.postgres import find_programs, running_postgres
from bench.results import Target
from bench.servers import SERVICE, LeftOut
from bench.study import Figure
from image_service.common.database.sqlite import SqliteDatabase
from image_service.server.snapshots.replicas.database import open_replica_database
from image_service.server.snapshots.storage.sql_statements import (
    DATABASE_FILE,
    MOUNTS,
    PAYLOADS,
    SCHEMA_VERSION,
    SNAPSHOTS,
    TABLES,
)
from image_service.server.standalone.sample import unpack_sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.servers import Server
    from bench.stage import Stage
    from image_service.common.database.database import Database

FEW, MANY = (100, 2), (100_000, 200)
"""Infra-envs that are stored, and base images."""
DATABASES = ("SQLite", "PostgreSQL")
_CONFIG_KIB = 1
_PAYLOAD_BYTES = 1024
_BATCH = 2000
_TURN = 25
"""Requests to one service before the other has its turn."""
_UNCOUNTED_TURNS = 1


@attrs.frozen
class _Site:
    """A service, and what takes CPU time with it: its PostgreSQL server, if it has one."""

    service: Server
    image: Path
    pids: tuple[int, ...]

    def measure(self, requests: int) -> float:
        """Request new infra-envs; return the CPU seconds of each."""
        before = self._cpu_seconds()
        with closing(connect(self.service.urls["http"])) as client:
            for _ in range(requests):
                request_new_infra_env(client, self.image)
        return (self._cpu_seconds() - before) / requests

    def _cpu_seconds(self) -> float:
        return sum(map(processes.cpu_seconds, self.pids))


def study_growth(stage: Stage, many: tuple[int, int] = MANY, turns: int = 20) -> Iterator[Figure]:
    """Compare the CPU time of first requests with many infra-envs and base images and with few."""
    programs = find_programs()
    if programs is None:
        raise LeftOut("PostgreSQL is not installed")
    for name in DATABASES:
        with ExitStack() as stack:
            upstream = upstream_environment(start_upstream(stack, stage, _CONFIG_KIB))
            of_database = programs if name == "PostgreSQL" else None
            sites = [_start(stack, stage, of_database, size, upstream) for size in (FEW, many)]
            samples: tuple[list[float], list[float]] = ([], [])
            for turn in range(turns + _UNCOUNTED_TURNS):
                for which in (0, 1) if turn % 2 else (1, 0):
                    seconds = sites[which].measure(_TURN)
                    if turn >= _UNCOUNTED_TURNS:
                        samples[which].append(seconds)
        for size, seconds_of in zip((FEW, many), samples, strict=True):
            what = f"CPU of a first request, {name}, {size[0]:,} infra-envs, {size[1]} base images"
            yield Figure(SERVICE, what, "ms", [1000 * each for each in seconds_of])
        ratios = [more / few for few, more in zip(*samples, strict=True)]
        yield Figure(SERVICE, f"CPU of a first request, {name}, many ÷ few", "", ratios, Target(at_most=1.1))


def _start(
    stack: ExitStack,
    stage: Stage,
    postgres_programs: Path | None,
    size: tuple[int, int],
    environment: Mapping[str, str],
) -> _Site:
    infra_envs, bases = size
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory)))
    images = list(_make_bases(directory, bases))
    (directory / "data").mkdir()
    pids: tuple[int, ...] = ()
    if postgres_programs is None:
        filled: Database = SqliteDatabase(directory / "data" / DATABASE_FILE, TABLES, SCHEMA_VERSION)
    else:
        postgres = stack.enter_context(running_postgres(postgres_programs))
        url, secret = postgres.create_database(), directory / "instance-secret"
        secret.write_text(f"{secrets.token_hex(32)}\n")
        environment = {**environment, "DATABASE_URL": url, "INSTANCE_SECRET_FILE": str(secret)}
        pids = (int((postgres.directory / "data" / "postmaster.pid").read_text().split()[0]),)
        filled = open_replica_database(url)
    with closing(filled):
        fill(filled, infra_envs, time.time())
    service = stage.start_service(stack, environment, directory, images)
    assert service.pid is not None  # noqa: S101 - it was started here
    return _Site(service, images[0], (service.pid, *pids))


def _make_bases(directory: Path, number: int) -> Iterator[Path]:
    sample = unpack_sample(directory)
    for count in range(number):
        path = directory / f"base-{count}.iso"
        path.hardlink_to(sample)
        yield path


def fill(database: Database, infra_envs: int, now: float) -> None:
    """Store a snapshot and a mount of so many infra-envs; nobody can read them."""
    for first in range(0, infra_envs, _BATCH):
        rows = [_rows(now) for _ in range(first, min(first + _BATCH, infra_envs))]

        def insert(connection: sa.Connection, rows: list[tuple[dict[str, Any], ...]] = rows) -> None:
            for table, of_table in zip((SNAPSHOTS, PAYLOADS, MOUNTS), zip(*rows, strict=True), strict=True):
                connection.execute(sa.insert(table), list(of_table))

        database.transact(insert)


def _rows(now: float) -> tuple[dict[str, Any], ...]:
    key = {"key": os.urandom(32), "generation": 1 + secrets.randbits(62)}
    snapshot = {
        **key,
        "taken_at": now,
        "validated_at": now,
        "used_at": now,
        "ended": False,
        "infra_env": os.urandom(16),
        "credentials": os.urandom(16),
        "read_at": now,
        "layout": 0,
    }
    mount = {**key, "reader": os.urandom(32), "base_sha256": "5f" * 32, "read_at": now}
    return snapshot, {**key, "sealed": os.urandom(_PAYLOAD_BYTES)}, mount
