"""At most one attempt in flight per key; whoever asks meanwhile waits for it and shares what comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


class SingleFlight(Generic[_Key, _Value]):
    """Shares attempts.

    Cancelling what ``join`` gave lets one waiter go and nothing else: the attempt goes on for the others,
    and for the retry of those who left.
    """

    def __init__(self) -> None:
        self._flights: dict[_Key, list[Deferred[_Value]]] = {}

    def join(self, key: _Key, start: Callable[[], Coroutine[Any, Any, _Value]]) -> Deferred[_Value]:
        """Wait for the attempt in flight, or start one.

        Args:
            key: what the attempt is for.
            start: makes the attempt.

        Returns:
            fires with the attempt's result or failure.
        """
        waiter: Deferred[_Value] = Deferred()
        waiters = self._flights.get(key)
        if waiters is not None:
            waiters.append(waiter)
            return waiter
        self._flights[key] = [waiter]
        Deferred.fromCoroutine(start()).addBoth(self._land, key)
        return waiter

    def _land(self, result: Any, key: _Key) -> None:  # noqa: ANN401 - a value or a Failure
        for waiter in self._flights.pop(key):
            if not waiter.called:
                waiter.callback(result)
