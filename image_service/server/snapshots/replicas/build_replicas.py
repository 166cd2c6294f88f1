"""Starts the coordination of replicas."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from image_service.common.concurrency.circuit_breaker import CircuitBreaker
from image_service.common.concurrency.coordination import LOCKS_FILE, Coordination, SharedMemoryCoordination
from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas import changes, claims
from image_service.server.snapshots.replicas.claims import Claims
from image_service.server.snapshots.replicas.coordination import ReplicaCoordination
from image_service.server.snapshots.replicas.listener import Listener
from image_service.server.snapshots.replicas.observer import Direction
from image_service.server.snapshots.replicas.outbox import Outbox

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.common.database.postgresql import PostgresqlDatabase
    from image_service.server.snapshots.replicas.observer import ReplicaObserver

CLEANUP_SECONDS = 60
THREADS = 2
"""So that a claim does not wait for announcements."""
TIMEOUT_SECONDS = 1.0
"""How long an attempt to claim may take: a request that waits for the repository, too, has 2.5 s."""


def start_replica_coordination(  # noqa: PLR0913 - what the coordination is made of
    parts: PartsStack,
    database: PostgresqlDatabase,
    listen_url: str,
    local: Coordination,
    data_dir: Path,
    *,
    observer: ReplicaObserver,
) -> ReplicaCoordination:
    """Return the coordination of this process with all of all replicas; it ends with the parts.

    Args:
        database: with `REPLICA_TABLES`.
        listen_url: ``DATABASE_LISTEN_URL``, or ``DATABASE_URL``.
        local: with the other processes of this host.
        data_dir: in which they lock.
    """
    if not isinstance(local, SharedMemoryCoordination):
        local = SharedMemoryCoordination.of_one_process(data_dir / LOCKS_FILE, parts.reactor)
    in_thread = parts.in_thread_pool(THREADS, "claims")
    to_claim, to_announce = (CircuitBreaker(in_thread, parts.reactor, TIMEOUT_SECONDS) for _ in range(2))
    sent, received = (partial(observer.record_changes, direction) for direction in Direction)
    outbox = Outbox(database, to_announce, parts.reactor, sent)
    parts.push_async_callback(outbox.stop)
    listener = Listener(listen_url, database, local, partial(parts.reactor.callFromThread, received))
    listener.start()
    parts.callback(listener.stop)

    async def clean_up() -> None:
        with suppress(StoreFailed):  # the next time removes more; the monitor logs that the database is away
            await to_announce(partial(database.transact, _clean_up))

    parts.call_every(CLEANUP_SECONDS, clean_up)
    observer.watch_notifications(lambda: local.is_notified)
    coordination = ReplicaCoordination(
        local, Claims(database), outbox, to_claim, parts.reactor, observer=observer
    )
    parts.callback(coordination.release_all)
    return coordination


def _clean_up(connection: sa.Connection) -> None:
    changes.remove_old(connection)
    claims.remove_abandoned(connection)
