"""Access to a repository that may fail.

A repository of this host costs no request when it fails: the service goes on in memory. Replicas that share
one would then serve different images at one URL: they refuse what they cannot read, or store, first.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeVar

from twisted.logger import Logger

from image_service.common.concurrency.circuit_breaker import TIMEOUT_SECONDS
from image_service.core.errors import StoreFailed, StoreFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from twisted.internet.interfaces import IReactorTime

T = TypeVar("T")

_log = Logger()

STORE_OPERATIONS = (READ, WRITE) = ("read", "write")
"""On stored snapshots, as in logs and metrics."""
RETRY_AFTER_SECONDS = 2
"""Of requests that a shared repository's failure refuses."""


class RepositoryAccess:
    """Attempts to read and write, which return None if they fail and the service goes on in memory."""

    def __init__(self, clock: IReactorTime, *, is_shared: bool) -> None:
        self._clock = clock
        self._is_shared = is_shared
        self._failed_at: dict[str, float] = {}

    @property
    def failing(self) -> Mapping[str, bool]:
        """Of each of `STORE_OPERATIONS`, whether it has failed and not succeeded since."""
        return {operation: operation in self._failed_at for operation in STORE_OPERATIONS}

    async def read(self, attempt: Awaitable[T]) -> T | None:
        """Return what is read; None if that fails.

        Raises:
            Unavailable: it fails, and replicas share the repository.
        """
        return await self._try(READ, attempt, is_required=self._is_shared)

    async def write(self, attempt: Awaitable[T], *, is_required: bool = False) -> T | None:
        """Return the result; None if it fails.

        Raises:
            Unavailable: it fails, is required, and replicas share the repository.
        """
        return await self._try(WRITE, attempt, is_required=is_required and self._is_shared)

    async def _try(self, operation: str, attempt: Awaitable[T], *, is_required: bool) -> T | None:
        """On a repository error, log the first one, and the first success after it."""
        try:
            result = await attempt
        except StoreFull as error:  # no failure: smaller ones are stored
            _log.debug("{reason}", reason=error.detail)
            if is_required:
                raise Unavailable("the store of snapshots is full", retry_after_seconds=60) from None
            return None
        except StoreFailed as error:
            if operation not in self._failed_at:
                _log.error(
                    "cannot {operation} stored snapshots, continuing {how}: {reason}",
                    operation=operation,
                    how="with known images only" if self._is_shared else "in memory",
                    reason=error.detail,
                )
            self._failed_at[operation] = self._clock.seconds()
            if is_required:
                reason = "the database of snapshots cannot be used now; known images are served"
                raise Unavailable(reason, retry_after_seconds=RETRY_AFTER_SECONDS) from None
            return None
        # Soon after a failure, others are over that began before it.
        if self._clock.seconds() > self._failed_at.get(operation, inf) + TIMEOUT_SECONDS:
            del self._failed_at[operation]
            _log.info("can {operation} stored snapshots again", operation=operation)
        return result
