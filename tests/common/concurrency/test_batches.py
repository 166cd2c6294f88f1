from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from image_service.common.concurrency.batches import Batches
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 3


@attrs.define
class Runs:
    """Batches that run until the test ends them."""

    started: list[list[str]] = attrs.field(factory=list)
    running: list[Deferred[None]] = attrs.field(factory=list)

    async def run(self, items: Sequence[str]) -> list[str]:
        self.started.append(list(items))
        self.running.append(Deferred())
        await self.running[-1]
        return [item.upper() for item in items]


def results_of(*waiters: Deferred[str]) -> list[Any]:
    """Return where the results will be, a Failure for each that fails."""
    found: list[Any] = []
    for waiter in waiters:
        waiter.addBoth(found.append)
    return found


def test_calls_that_come_meanwhile_are_the_next_batch() -> None:
    runs = Runs()
    batches = Batches(runs.run, LIMIT)
    results = results_of(*map(batches.add, "abc"))
    assert runs.started == [["a"]]
    runs.running[0].callback(None)
    assert results == ["A"]
    assert runs.started == [["a"], ["b", "c"]]
    runs.running[1].callback(None)
    assert results == ["A", "B", "C"]
    results_of(batches.add("d"))
    assert runs.started[2:] == [["d"]]


def test_batch_has_no_more_items_than_its_limit() -> None:
    runs = Runs()
    batches = Batches(runs.run, LIMIT)
    results = results_of(*map(batches.add, "abcdef"))
    for number in range(3):
        runs.running[number].callback(None)
    assert runs.started == [["a"], ["b", "c", "d"], ["e", "f"]]
    assert results == list("ABCDEF")


def test_failure_is_of_one_batch() -> None:
    runs = Runs()
    batches = Batches(runs.run, LIMIT)
    results = results_of(*map(batches.add, "abcde"))
    runs.running[0].callback(None)
    runs.running[1].errback(Failure(StoreFailed("locked")))
    runs.running[2].callback(None)
    assert [getattr(each, "type", each) for each in results] == ["A", *3 * [StoreFailed], "E"]


def test_canceled_call_affects_no_other() -> None:
    runs = Runs()
    batches = Batches(runs.run, LIMIT)
    waiters = list(map(batches.add, "abc"))
    results = results_of(*waiters)
    waiters[1].cancel()
    runs.running[0].callback(None)
    runs.running[1].callback(None)
    assert isinstance(results[0], Failure)
    assert results[0].check(CancelledError)
    assert results[1:] == ["A", "C"]
