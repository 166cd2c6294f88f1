"""The parts of a process that have started, and stop in reverse order."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from twisted.internet.epollreactor import EPollReactor

    T = TypeVar("T")

_log = Logger()


class Lifecycle(AsyncExitStack):
    """Stops what was pushed, the last one first, by ``aclose``; the parts run on `reactor`."""

    def __init__(self, reactor: EPollReactor) -> None:
        super().__init__()
        self.reactor = reactor

    def call_every(self, seconds: float, task: Callable[[], Awaitable[object] | None]) -> None:
        """Call a task periodically, the first time after `seconds`; a failure is logged and stops nothing."""

        def attempt() -> Deferred[object]:
            done = maybeDeferred(task)
            return done.addErrback(lambda failure: _log.failure("a periodic task failed", failure=failure))

        loop = LoopingCall(attempt)
        loop.clock = self.reactor
        loop.start(seconds, now=False)
        self.callback(loop.stop)

    def in_thread_pool(self, threads: int, name: str) -> Callable[[Callable[[], T]], Deferred[T]]:
        """Start a pool of at most `threads` threads, and return what runs work in it."""
        return partial(deferToThreadPool, self.reactor, self.start_thread_pool(threads, name))

    def start_thread_pool(self, threads: int, name: str) -> ThreadPool:
        """Start a pool of at most `threads` threads."""
        pool = ThreadPool(0, threads, name)
        pool.start()
        self.callback(pool.stop)
        return pool
