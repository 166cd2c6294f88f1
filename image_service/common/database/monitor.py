"""Watches whether a shared database answers, and how far its clock is from this host's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import sqlalchemy as sa
from twisted.logger import Logger

from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.database.postgresql import PostgresqlDatabase

CHECK_SECONDS = 2.0
"""Between two checks."""
LATE_SECONDS = 1.5
"""A check that takes longer counts as failed until it is over."""
ABORT_SECONDS = 10.0
"""After this a transaction is aborted: its server, or something in between, hangs."""
CLOCK_ERROR_SECONDS = 2.0
"""By how much the clocks of two replicas differ at most, as far as stored instants are concerned."""
_CLOCK = sa.select(sa.extract("epoch", sa.func.clock_timestamp()))
_log = Logger()


class DatabaseMonitor:
    """Checks a database periodically.

    Args:
        in_thread: runs the check, in a thread that nothing else uses.
        clock: monotonic.
        open_: is awaited after the first check that succeeds; raises StoreFailed if it is to be tried again.
    """

    def __init__(
        self,
        database: PostgresqlDatabase,
        in_thread: InThread,
        clock: IReactorTime,
        open_: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._in_thread = in_thread
        self._clock = clock
        self._open = open_
        self._asked_at: float | None = None
        self._failing_since: float | None = clock.seconds()
        self._offset = time.time() - clock.seconds()
        self.was_reached = False
        """False: nothing can be read or written yet."""
        self._logged = ""
        self.round_trip_seconds = 0.0
        """Of the latest check that succeeded."""

    def wall_clock(self) -> float:
        """Return the database's time in seconds since the epoch; this host's before the first check."""
        return self._clock.seconds() + self._offset

    @property
    def clock_offset_seconds(self) -> float:
        """By how much the database's clock is ahead of this host's."""
        return self.wall_clock() - time.time()

    @property
    def failing_seconds(self) -> float | None:
        """The time since the database stopped answering; None: it answers."""
        now, since = self._clock.seconds(), self._failing_since
        if since is None and self._asked_at is not None and now > self._asked_at + LATE_SECONDS:
            since = self._asked_at
        return None if since is None else now - since

    async def check(self) -> None:
        """Ask the database for its time, unless an earlier check is not over.

        Raises:
            ConfigurationError: ``open_`` has raised it.
        """
        if self._asked_at is not None:
            return
        self._asked_at = self._clock.seconds()
        try:
            self._offset, self.round_trip_seconds = await self._in_thread(self._measure)
            if not self.was_reached:
                await self._open()
                self.was_reached = True
        except StoreFailed as error:
            if error.detail != self._logged:
                _log.error("cannot reach the database: {reason}", reason=error.detail)
            self._logged = error.detail
            if self._failing_since is None:
                self._failing_since = self._asked_at
        else:
            if self._logged:
                _log.info("the database answers again")
            self._logged, self._failing_since = "", None
        finally:
            self._asked_at = None

    def abort_late(self) -> None:
        """Abort transactions that take too long."""
        self._database.abort(ABORT_SECONDS)

    def _measure(self) -> tuple[float, float]:
        """Return the seconds by which the database's clock is ahead of the monotonic one, and of the trip."""

        def work(connection: sa.Connection) -> tuple[float, float]:
            before = self._clock.seconds()
            shown = float(connection.execute(_CLOCK).scalar_one())
            after = self._clock.seconds()
            return shown - (before + after) / 2, after - before

        return self._database.transact(work)
