"""Which layouts the replicas have: each of them writes it to the database, and reads it of the others."""

from __future__ import annotations

import secrets
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa
from twisted.logger import Logger

from image_service.core.errors import StoreFailed
from image_service.core.images.layouts import newest_layout, oldest_layout
from image_service.server.snapshots.replicas.database import REPLICAS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.database.postgresql import PostgresqlDatabase
    from image_service.server.snapshots.storage.shared_layouts import SharedLayouts

EXCHANGE_SECONDS = 5
"""Between two calls of ``exchange``: another replica's layout is unknown for so long."""
SEEN_SECONDS = 60
"""A replica that was not seen for so long does not count."""
_log = Logger()

_NOW = sa.func.clock_timestamp()
_IS_ABSENT = REPLICAS.c.seen_at < _NOW - timedelta(seconds=SEEN_SECONDS)
_FIND = sa.select(REPLICAS.c.layout).where(~_IS_ABSENT)
_REMOVE_ABSENT = sa.delete(REPLICAS).where(_IS_ABSENT)


class LayoutExchange:
    """Tells the replicas which layouts this one has, and sets which all of them have.

    Until it has read the table once, new snapshots get this release's oldest layout.

    Args:
        layouts: set by what is read.
        is_leader: of the processes of the replica; the others only read.
    """

    def __init__(
        self,
        database: PostgresqlDatabase,
        in_thread: InThread,
        layouts: SharedLayouts,
        *,
        is_leader: bool,
    ) -> None:
        self._database = database
        self._in_thread = in_thread
        self._layouts = layouts
        self._is_leader = is_leader
        self._row = {"id": secrets.token_bytes(16), "layout": newest_layout().version}
        insert = database.insert(REPLICAS)
        self._upsert = insert.values(seen_at=_NOW).on_conflict_do_update(
            index_elements=[REPLICAS.c.id], set_={"seen_at": _NOW}
        )
        layouts.record([oldest_layout().version])

    async def exchange(self) -> None:
        """Write and read the table; is called each `EXCHANGE_SECONDS`. If that fails, nothing changes."""
        try:
            seen = await self._in_thread(partial(self._database.transact, self._exchange))
        except StoreFailed:
            return  # what else uses the database logs it
        before = self._layouts.common
        self._layouts.record([*seen, newest_layout().version])
        if self._layouts.common != before:
            _log.info("new snapshots get layout {layout}", layout=self._layouts.common)

    async def leave(self) -> None:
        """Remove the replica's row: it composes nothing any more."""
        if not self._is_leader:
            return
        remove = sa.delete(REPLICAS).where(REPLICAS.c.id == self._row["id"])
        try:
            await self._in_thread(
                partial(self._database.transact, lambda connection: connection.execute(remove).close())
            )
        except StoreFailed:
            return  # it counts as absent after a while

    def _exchange(self, connection: sa.Connection) -> Sequence[int]:
        if self._is_leader:
            connection.execute(self._upsert, self._row)
            connection.execute(_REMOVE_ABSENT)
        return connection.scalars(_FIND).all()
