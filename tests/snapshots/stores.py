"""Stores of snapshots for tests: with threads, and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from image_service.snapshots.build import open_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.snapshots.sql import SqlRepository

T = TypeVar("T")


class Threads:
    """Threads for the time of a test."""

    def __init__(self, reactor: EPollReactor, number: int) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(0, number, "store")
        self._pool.start()

    def __call__(self, work: Callable[[], T], /) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._pool, work)

    def stop(self) -> None:
        self._pool.stop()


def run_now(work: Callable[[], T], /) -> Deferred[T]:
    return succeed(work())


def store_in(directory: Path) -> SqlRepository:
    """A store that waits for the disk wherever it is called."""
    return open_repository(directory, run_now)


def outcome(asked: Coroutine[Any, Any, T]) -> T:
    """What a call of such a store gives, or raises."""
    results: list[T | Failure] = []
    Deferred.fromCoroutine(asked).addBoth(results.append)
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]
