"""Calls that come while a batch runs form the next batch: one transaction serves many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from image_service.common.concurrency.single_flight import share

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Batches(Generic[_Item, _Result]):
    """Runs batches, one at a time, in the order of their items.

    Canceling a Deferred that ``add`` returned affects one caller only: the item stays in its batch.

    Args:
        run: gets the items of a batch, one at least, and returns a result for each.
        limit: items of a batch.
    """

    def __init__(
        self, run: Callable[[list[_Item]], Coroutine[Any, Any, Sequence[_Result]]], limit: int
    ) -> None:
        self._run = run
        self._limit = limit
        self._waiting: list[tuple[_Item, Deferred[_Result]]] = []
        self._is_running = False

    def add(self, item: _Item) -> Deferred[_Result]:
        """Return a Deferred of an item's result; it fails as its batch does."""
        waiter: Deferred[_Result] = Deferred()
        self._waiting.append((item, waiter))
        if not self._is_running:
            Deferred.fromCoroutine(self._run_all())
        return waiter

    async def _run_all(self) -> None:
        self._is_running = True
        while self._waiting:
            batch = self._waiting[: self._limit]
            del self._waiting[: self._limit]
            results: Sequence[_Result | Failure]
            try:
                results = await self._run([item for item, _ in batch])
            except Exception:  # noqa: BLE001 - the callers get it
                results = [Failure()] * len(batch)
            for (_, waiter), result in zip(batch, results, strict=True):
                share(result, [waiter])
        self._is_running = False
