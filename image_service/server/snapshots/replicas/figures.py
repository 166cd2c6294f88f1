"""What each replica does now: a row of each, which it writes every few seconds, and all of them read."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import sqlalchemy as sa

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.database import REPLICA_FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.database.postgresql import PostgresqlDatabase

FORGOTTEN_SECONDS = 600
"""A replica that was not seen for so long is not one any more."""
_ROWS = REPLICA_FIGURES.c
_NOW = sa.func.clock_timestamp()
_AGE = sa.extract("epoch", _NOW - _ROWS.seen_at)
_FIND = sa.select(_ROWS.id, _ROWS.figures, _AGE.label("age")).order_by(_ROWS.id)
_REMOVE_FORGOTTEN = sa.delete(REPLICA_FIGURES).where(
    _ROWS.seen_at < _NOW - timedelta(seconds=FORGOTTEN_SECONDS)
)


@attrs.frozen
class SeenReplica:
    """A replica as its row shows it.

    Args:
        id: a random text of each start.
        figures: JSON, as the replica has written it.
        age_seconds: since then.
    """

    id: str
    figures: Mapping[str, Any]
    age_seconds: float


class FigureExchange:
    """Writes the row of a replica, and reads those of all.

    Args:
        in_thread: runs transactions.
    """

    def __init__(self, database: PostgresqlDatabase, in_thread: InThread) -> None:
        self._database = database
        self._in_thread = in_thread
        self._written: set[str] = set()

    async def exchange(self, replica_id: str, figures: Mapping[str, Any]) -> Sequence[SeenReplica]:
        """Write the row of a replica; return those of all. Raises StoreFailed."""
        exchange = partial(self._exchange, {"id": replica_id, "figures": json.dumps(figures)})
        self._written.add(replica_id)
        return await self._in_thread(partial(self._database.transact, exchange))

    async def leave(self) -> None:
        """Remove the rows that were written here: the process ends. Another one may write them again."""
        remove = sa.delete(REPLICA_FIGURES).where(_ROWS.id.in_(self._written))
        try:
            await self._in_thread(
                partial(self._database.transact, lambda connection: connection.execute(remove).close())
            )
        except StoreFailed:
            return  # others see that it is away

    def _exchange(self, row: Mapping[str, str], connection: sa.Connection) -> Sequence[SeenReplica]:
        upsert = self._database.insert(REPLICA_FIGURES).values(seen_at=_NOW)
        written = {"figures": row["figures"], "seen_at": _NOW}
        connection.execute(upsert.on_conflict_do_update(index_elements=[_ROWS.id], set_=written), row)
        connection.execute(_REMOVE_FORGOTTEN)
        return [
            SeenReplica(found.id, json.loads(found.figures), float(found.age))
            for found in connection.execute(_FIND)
        ]
