"""Boot images and a client of theirs, and a repository on disk."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.coordination import SIZE_BYTES, Coordination, SharedMemoryCoordination
from tests.server.snapshots.doubles import World
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import Client, say
from tests.server.snapshots.outcomes import outcome
from tests.server.snapshots.replicas.hosts import Wire, make_replica_database, replicas_over
from tests.server.snapshots.repositories import repository_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.database.postgresql import PostgresqlDatabase
    from image_service.server.snapshots.storage.sql_repository import SqlRepository
    from tests.postgres import PostgresServer


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        say(made)
        yield made


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[SqlRepository]:
    repository = repository_in(tmp_path)
    yield repository
    outcome(repository.close())


@pytest.fixture(autouse=True)
def _first_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the generations of each key count from 1."""
    monkeypatch.setattr(
        "image_service.server.snapshots.storage.sealed_repository.first_generation", lambda: 1
    )


@attrs.frozen
class Coordinating:
    """Three processes that coordinate.

    Args:
        processes: the coordination of each.
        memories: their counters; workers share them.
    """

    processes: list[Coordination]
    memories: list[SharedMemoryCoordination]


@pytest.fixture(scope="session")
def replica_database(request: pytest.FixtureRequest) -> Iterator[PostgresqlDatabase]:
    """A database that all tests of the coordination may share: their keys are released."""
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with closing(make_replica_database(postgres.create_database())) as database:
        yield database


@pytest.fixture(params=["workers", "replicas"])
def coordinate(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[IReactorTime], Coordinating]:
    """Return what makes three processes: workers of one host, or replicas that have a host each."""

    def workers(clock: IReactorTime) -> Coordinating:
        memory = memoryview(bytearray(SIZE_BYTES))
        processes = [SharedMemoryCoordination(memory, tmp_path / "locks", clock) for _ in range(3)]
        return Coordinating(list(processes), processes[:1])

    def replicas(clock: IReactorTime) -> Coordinating:
        monkeypatch.setattr("image_service.server.snapshots.replicas.coordination.NOTIFIED_SECONDS", 0)
        wire = Wire(request.getfixturevalue("replica_database"))
        return Coordinating(list(replicas_over(wire, tmp_path, clock, 3)), wire.hosts)

    return workers if request.param == "workers" else replicas
