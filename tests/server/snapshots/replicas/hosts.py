"""Hosts of replicas: each with processes that coordinate over one PostgreSQL database."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import attrs
import sqlalchemy as sa
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import SharedMemoryCoordination
from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.server.snapshots.replicas import changes
from image_service.server.snapshots.replicas.claims import Claims
from image_service.server.snapshots.replicas.coordination import ReplicaCoordination
from image_service.server.snapshots.replicas.database import CLAIMS, REPLICA_TABLES
from image_service.server.snapshots.replicas.listener import Listener
from image_service.server.snapshots.replicas.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.errors import StoreFailed
    from image_service.server.snapshots.replicas.observer import ClaimOutcome, Direction, ReplicaObserver

T = TypeVar("T")


def make_replica_database(url: str) -> PostgresqlDatabase:
    """Return a database with the tables of the coordination alone."""
    tables = sa.MetaData()
    for table in REPLICA_TABLES:
        table.to_metadata(tables)
    stored_bytes = sa.select(sa.func.count()).select_from(CLAIMS)
    return PostgresqlDatabase(url, tables, 1, stored_bytes=stored_bytes)


@contextmanager
def listening(
    url: str, database: PostgresqlDatabase, directory: Path, host: SharedMemoryCoordination | None = None
) -> Iterator[SharedMemoryCoordination]:
    """Yield the counters of a host, which a listener keeps in step until the block ends."""
    directory.mkdir(exist_ok=True)
    host = host or SharedMemoryCoordination.of_one_process(directory / "locks", Clock())
    listener = Listener(url, database, host)
    listener.start()
    try:
        yield host
    finally:
        listener.stop()


@attrs.define(eq=False)
class Wire:
    """Runs transactions at once, and delivers what they change to all hosts.

    Args:
        database: of the replicas.
        hosts: their counters.
        is_cut: deliver nothing, until the test does.
        failure: what transactions fail with.
        transactions: that succeeded.
    """

    database: PostgresqlDatabase
    hosts: list[SharedMemoryCoordination] = attrs.field(factory=list)
    is_cut: bool = False
    failure: StoreFailed | None = None
    transactions: int = 0
    _delivered: set[int] = attrs.field(factory=set)

    async def __call__(self, work: Callable[[], T], /) -> T:
        """As an ``InThread``."""
        if self.failure is not None:
            raise self.failure.copy()
        result = work()
        self.transactions += 1
        if not self.is_cut:
            self.deliver()
        return result

    def deliver(self) -> None:
        """Deliver what was changed."""
        for number, payload in self.database.transact(changes.read).items():
            if number not in self._delivered:
                self._delivered.add(number)
                for host in self.hosts:
                    for key, counter in changes.parse(payload):
                        host.adopt(key, counter)


def replicas_over(
    wire: Wire, directory: Path, clock: IReactorTime, number: int, observer: ReplicaObserver | None = None
) -> list[ReplicaCoordination]:
    """Return the coordinations of replicas."""

    def replica() -> ReplicaCoordination:
        local = SharedMemoryCoordination.of_one_process(directory / "locks", clock)
        local.is_notified = True
        wire.hosts.append(local)
        outbox = Outbox(wire.database, wire, clock)
        return ReplicaCoordination(
            local, Claims(wire.database), outbox, wire, clock, observer=observer or Recorded()
        )

    wire.deliver()
    return [replica() for _ in range(number)]


class Recorded:
    """The outcomes of claims, as a `ReplicaObserver`."""

    def __init__(self) -> None:
        self.claims: list[tuple[ClaimOutcome, float]] = []

    def record_claim(self, outcome: ClaimOutcome, seconds: float) -> None:
        self.claims.append((outcome, seconds))

    def record_changes(self, direction: Direction, number: int) -> None:
        pass

    def watch_notifications(self, is_notified: Callable[[], bool]) -> None:
        pass


def pass_time(database: PostgresqlDatabase, key: bytes, seconds: float) -> None:
    """Let a claim become older."""
    expires_at = CLAIMS.c.expires_at - timedelta(seconds=seconds)
    older = sa.update(CLAIMS).where(CLAIMS.c.key == key).values(expires_at=expires_at)
    database.transact(lambda connection: connection.execute(older).close())
