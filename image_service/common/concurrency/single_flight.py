"""At most one attempt in flight per key; later callers wait for it and share its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from image_service.core.errors import ImageServiceError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

_log = Logger()

_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


class SingleFlight(Generic[_Key, _Value]):
    """Shares attempts.

    Canceling a Deferred that ``join`` returned affects one waiter only: the attempt continues for the
    others, and for retries. An unexpected error is logged if no waiter is left.

    Args:
        limit: attempts in flight, beyond which none is started; None: any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._waiters: dict[_Key, list[Deferred[_Value]]] = {}

    def join(self, key: _Key, start: Callable[[], Coroutine[Any, Any, _Value]]) -> Deferred[_Value]:
        """Return a Deferred of the attempt in flight; of a new one, started by ``start``, if there is none.

        Raises:
            Unavailable: too many attempts are in flight.
        """
        waiter: Deferred[_Value] = Deferred()
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.append(waiter)
            return waiter
        if self._limit is not None and len(self._waiters) >= self._limit:
            raise Unavailable(f"{self._limit} images are being prepared", retry_after_seconds=1)
        self._waiters[key] = [waiter]
        Deferred.fromCoroutine(start()).addBoth(lambda result: share(result, self._waiters.pop(key)))
        return waiter


def shielded(work: Deferred[_Value]) -> Deferred[_Value]:
    """Return a Deferred that fires as `work` does, and whose cancellation does not cancel `work`."""
    waiter: Deferred[_Value] = Deferred()
    work.addBoth(share, [waiter])
    return waiter


def share(result: Any, waiters: list[Deferred[_Value]]) -> None:  # noqa: ANN401 - a value or a Failure
    """Fire the Deferreds that were not canceled; log an unexpected error that nobody waits for."""
    left = [waiter for waiter in waiters if not waiter.called]
    if not left and isinstance(result, Failure) and not result.check(ImageServiceError, CancelledError):
        _log.failure("a task failed after all its callers had left", failure=result)
    for waiter in left:
        if not waiter.called:  # else it was canceled by the callback of one before it
            waiter.callback(result)
