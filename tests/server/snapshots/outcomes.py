"""Results of coroutines, and work that needs no thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Outcome(Generic[T]):
    """The result of a coroutine, once it has one."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._results: list[T | Failure] = []
        Deferred.fromCoroutine(work).addBoth(self._results.append)

    @property
    def has_fired(self) -> bool:
        return bool(self._results)

    @property
    def result(self) -> T | Failure:
        (result,) = self._results
        return result

    @property
    def value(self) -> T:
        """The result; raises the error instead."""
        (result,) = self._results
        if isinstance(result, Failure):
            result.raiseException()
        return result

    @property
    def error(self) -> BaseException:
        (result,) = self._results
        assert isinstance(result, Failure), result
        return cast("BaseException", result.value)


def outcome(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that does not wait."""
    return Outcome(work).value


async def run_now(work: Callable[[], T], /) -> T:
    """Run work at once instead of in a thread."""
    return work()
