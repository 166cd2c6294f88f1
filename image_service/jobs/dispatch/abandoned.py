"""Work for a client that may disconnect: its result then goes to the next request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from image_service.core.errors import ImageServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from twisted.python.failure import Failure

_T = TypeVar("_T")
_log = Logger()


class AbandonedResults(Generic[_T]):
    """Carries out work to its end, also for clients that have disconnected, and keeps the results of those.

    Canceling a poll of the engine could lose the job in its response.

    Args:
        keep_seconds: after which a kept result is of no use.
    """

    def __init__(self, seconds: Callable[[], float], keep_seconds: float) -> None:
        self._seconds = seconds
        self._keep_seconds = keep_seconds
        self._kept: list[tuple[float, _T]] = []

    def carry_out(self, work: Coroutine[Deferred[Any], Any, _T | None]) -> Deferred[_T | None]:
        """Return the work's result; if that is canceled, the result is kept."""
        waiter: Deferred[_T | None] = Deferred()
        Deferred.fromCoroutine(work).addCallbacks(self._deliver, _fail, (waiter,), {}, (waiter,))
        return waiter

    def pop(self, is_wanted: Callable[[_T], bool]) -> _T | None:
        """Return the oldest kept result that is wanted; None: there is none."""
        oldest = self._seconds() - self._keep_seconds
        self._kept = [(since, result) for since, result in self._kept if since > oldest]
        for number, (_, result) in enumerate(self._kept):
            if is_wanted(result):
                return self._kept.pop(number)[1]
        return None

    def _deliver(self, result: _T | None, waiter: Deferred[_T | None]) -> None:
        if not waiter.called:
            waiter.callback(result)
        elif result is not None:
            self._kept.append((self._seconds(), result))


def _fail(failure: Failure, waiter: Deferred[_T | None]) -> None:
    if not waiter.called:
        waiter.errback(failure)
    elif not failure.check(ImageServiceError, CancelledError):
        _log.failure("a request of a disconnected worker failed", failure)
