"""A circuit breaker: a store that has failed, or was too slow, is left alone for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred

from image_service.common.concurrency.single_flight import shielded
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.process_parts import InThread

T = TypeVar("T")

TIMEOUT_SECONDS = 0.75
"""How long a caller waits. A request that waits once to read and once to write still has half of its time."""
PAUSE_SECONDS = 5.0
"""Between a failure and the next attempt."""
MAX_PENDING = 1024
"""Calls that wait or run at once; beyond that is more than can be done in time."""


class CircuitBreaker:
    """Runs work in threads; every call returns or raises within a timeout. An `InThread`.

    After StoreFailed or a timeout, they fail at once for `PAUSE_SECONDS`, and until none of them is left in
    the threads. Then a single call is tried; if it succeeds, all are. Of too many calls at once, some fail:
    one that was not begun in time, while others were done, fails alone.
    """

    def __init__(
        self, in_thread: InThread, clock: IReactorTime, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._in_thread = in_thread
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._pending = 0
        self._done = 0
        self._failure: StoreFailed | None = None
        self._retry_at = 0.0

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return the result of work.

        Work that has begun when its caller stops waiting may still succeed; work that has not is not begun.

        Raises:
            StoreFailed: work has raised it, takes too long, or is not tried.
        """
        if self._failure is not None and (self._pending or self._clock.seconds() < self._retry_at):
            raise self._failure.copy()
        if self._pending >= MAX_PENDING:
            raise StoreFailed(f"{MAX_PENDING} calls are waiting for the store")
        is_attempt, is_begun, is_given_up, done_before = self._failure is not None, False, False, self._done

        def run() -> T:
            nonlocal is_begun
            if is_given_up:
                raise StoreFailed("not begun in time")
            is_begun = True
            return work()

        self._pending += 1
        done = Deferred.fromCoroutine(self._run(run))
        try:
            result = await shielded(done).addTimeout(self._timeout_seconds, self._clock, _raise_timeout)
        except StoreFailed as failure:
            is_given_up = True
            if is_begun or self._done == done_before:
                self._failure = failure.copy()
                self._retry_at = self._clock.seconds() + PAUSE_SECONDS
            raise
        except CancelledError:
            is_given_up = True
            raise
        if is_attempt:
            self._failure = None
        return result

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            result = await self._in_thread(work)
        finally:
            self._pending -= 1
        self._done += 1
        return result


def _raise_timeout(_: Any, seconds: float) -> Any:  # noqa: ANN401 - in place of any result
    raise StoreFailed(f"no result within {seconds:g} s")
