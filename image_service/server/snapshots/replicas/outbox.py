"""What the other replicas are to learn from this process: changed counters, and released claims.

It is written in the background, as soon as the database can be used.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas import changes, claims

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.database.postgresql import PostgresqlDatabase
    from image_service.server.snapshots.replicas.claims import Claim

_log = Logger()

RETRY_SECONDS = 1.0
MAX_CHANGES = 65536
"""That wait for the database; of older ones the others learn within the TTL."""


@attrs.define(eq=False)
class _Batch:
    """What is written in one transaction; ``waiting`` is fired when it was tried."""

    changes: dict[bytes, int] = attrs.field(factory=dict)
    released: dict[Claim, float] = attrs.field(factory=dict)  # and when
    waiting: list[Deferred[None]] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.released)

    def write(self, connection: sa.Connection) -> None:
        claims.release(connection, list(self.released))
        changes.write(connection, self.changes)

    def put_before(self, later: _Batch, now: float) -> None:
        """Have it written with a later one, which knows better, but nothing that is of no use any more."""
        changed = {**self.changes, **later.changes}
        later.changes = dict(islice(changed.items(), max(0, len(changed) - MAX_CHANGES), None))
        kept = {claim: at for claim, at in self.released.items() if now < at + claims.CLAIM_SECONDS}
        later.released = {**kept, **later.released}


class Outbox:
    """Writes batch after batch; one that fails is tried again with the next.

    Args:
        in_thread: raises StoreFailed in time also if the database hangs.
        sent: is called with the number of changes that were written.
    """

    def __init__(
        self,
        database: PostgresqlDatabase,
        in_thread: InThread,
        clock: IReactorTime,
        sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._in_thread = in_thread
        self._clock = clock
        self._sent = sent
        self._next = _Batch()
        self._current = self._next
        self._sending: Deferred[None] | None = None
        self._is_sending = self._is_failing = self._is_stopping = False
        self.changed_at = -inf
        """When changes were last written, in seconds of the clock."""

    def change(self, key: bytes, counter: int) -> None:
        """Have the others change the counter of a key."""
        self._next.changes[key[: changes.KEY_BYTES]] = counter
        self._start()

    def release(self, claim: Claim) -> None:
        """Have the database forget a claim."""
        self._next.released[claim] = self._clock.seconds()
        self._start()

    def until_tried(self) -> Deferred[None]:
        """Return a Deferred that fires when all that was given is written, or could not be the first time."""
        tried: Deferred[None] = Deferred()
        if self._is_sending and not self._is_failing:
            (self._next or self._current).waiting.append(tried)
        else:
            tried.callback(None)
        return tried

    async def stop(self) -> None:
        """Write what is left, if the database can be used."""
        self._is_stopping = True
        await self.until_tried()
        if self._is_sending and self._sending is not None:
            self._sending.cancel()

    def _start(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            self._sending = Deferred.fromCoroutine(self._send())
            self._sending.addErrback(lambda failure: failure.trap(CancelledError) and None)

    async def _send(self) -> None:
        try:
            while self._next:
                self._current, self._next = self._next, _Batch()
                await self._write(self._current)
                if self._is_failing and self._is_stopping:
                    return
                if self._is_failing:
                    await deferLater(self._clock, RETRY_SECONDS)
        finally:
            self._is_sending = False

    async def _write(self, batch: _Batch) -> None:
        try:
            await self._in_thread(partial(self._database.transact, batch.write))
        except StoreFailed as error:
            if not self._is_failing:
                _log.warn("cannot notify other replicas, trying again: {reason}", reason=error.detail)
            self._is_failing = True
            batch.put_before(self._next, self._clock.seconds())
        else:
            self._is_failing = False
            if batch.changes:
                self.changed_at = self._clock.seconds()
                self._sent(len(batch.changes))
        finally:
            waiting, batch.waiting = batch.waiting, []
            for each in waiting:
                each.callback(None)
