"""A real PostgreSQL server of a test's own, which the benchmark needs too."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench import postgres
from bench.postgres import PostgresServer
from tests.acceptance.clients import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PostgresServer", "running_postgres"]


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server until the block ends; without PostgreSQL, skip the test, or fail it in CI."""
    programs = postgres.find_programs()
    if programs is None:
        missing("postgres (postgresql)")
    with postgres.running_postgres(programs) as server:
        yield server
