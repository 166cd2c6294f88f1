"""At most one attempt in flight per key; whoever asks meanwhile waits for it and shares what comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from image_service.errors import ImageServiceError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

_log = Logger()

_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


class SingleFlight(Generic[_Key, _Value]):
    """Shares attempts.

    Cancelling what ``join`` gave lets one waiter go and nothing else: the attempt goes on for the others,
    and for the retry of those who left. What nobody foresaw is logged where nobody is left to be told.

    Args:
        limit: attempts in flight, beyond which none is started; None: any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._flights: dict[_Key, list[Deferred[_Value]]] = {}

    def join(self, key: _Key, start: Callable[[], Coroutine[Any, Any, _Value]]) -> Deferred[_Value]:
        """Wait for the attempt in flight, or start one.

        Args:
            key: what the attempt is for.
            start: makes the attempt.

        Returns:
            fires with the attempt's result or failure.

        Raises:
            Unavailable: too many attempts are in flight.
        """
        waiter: Deferred[_Value] = Deferred()
        waiters = self._flights.get(key)
        if waiters is not None:
            waiters.append(waiter)
            return waiter
        if self._limit is not None and len(self._flights) >= self._limit:
            raise Unavailable(f"{self._limit} images are being made ready", retry_after_seconds=1)
        self._flights[key] = [waiter]
        Deferred.fromCoroutine(start()).addBoth(self._land, key)
        return waiter

    def _land(self, result: Any, key: _Key) -> None:  # noqa: ANN401 - a value or a Failure
        _share(result, self._flights.pop(key))


def detached(work: Deferred[_Value]) -> Deferred[_Value]:
    """Give a waiter of its own: who stops waiting does not stop the work.

    Args:
        work: goes on.

    Returns:
        fires as it does.
    """
    waiter: Deferred[_Value] = Deferred()
    work.addBoth(_share, [waiter])
    return waiter


def _share(result: Any, waiters: list[Deferred[_Value]]) -> None:  # noqa: ANN401 - a value or a Failure
    """Tell those who still wait.

    Args:
        result: a value or a Failure.
        waiters: those who waited.
    """
    left = [waiter for waiter in waiters if not waiter.called]
    if not left and isinstance(result, Failure) and not result.check(ImageServiceError):
        _log.failure("what nobody waits for any more has failed", failure=result)
    for waiter in left:
        if not waiter.called:  # else it left because of what one before it did
            waiter.callback(result)
