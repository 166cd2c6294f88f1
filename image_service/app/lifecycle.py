"""What runs, and ends in reverse order: parts, threads, and what is done again and again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.epollreactor import EPollReactor

T = TypeVar("T")

_log = Logger()


class Running(AsyncExitStack):
    """The parts that have started.

    Args:
        reactor: the one that runs.
    """

    def __init__(self, reactor: EPollReactor) -> None:
        super().__init__()
        self._reactor = reactor

    def every(self, seconds: float, work: Callable[[], Awaitable[object] | None]) -> None:
        """Do something again and again until the end; a failure is logged and ends nothing.

        Args:
            seconds: between two times, and before the first.
            work: what is done.
        """

        def attempt() -> Deferred[object]:
            done = maybeDeferred(work)
            return done.addErrback(lambda failure: _log.failure("a regular task failed", failure=failure))

        loop = LoopingCall(attempt)
        loop.clock = self._reactor
        loop.start(seconds, now=False)
        self.callback(loop.stop)

    def in_pool(self, threads: int, name: str) -> Callable[[Callable[[], T]], Deferred[T]]:
        """Give what runs work in threads of its own.

        Args:
            threads: how many, at most.
            name: theirs.
        """
        return partial(deferToThreadPool, self._reactor, self.pool(threads, name))

    def pool(self, threads: int, name: str) -> ThreadPool:
        """Start threads.

        Args:
            threads: how many, at most.
            name: theirs.
        """
        pool = ThreadPool(0, threads, name)
        pool.start()
        self.callback(pool.stop)
        return pool
