"""The parts of a process that have started, and stop in reverse order; its pools of threads."""

from __future__ import annotations

import os
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

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

NICENESS = 10
"""Of threads that compute: at the reactor's own, requests took twice as long while an image was hashed."""


class InThread(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return the work's result once it is done; canceling that does not stop the work."""


def run_at_low_priority(work: Callable[[], T]) -> T:
    """Return the result of work, after lowering the present thread's priority for good."""
    with suppress(PermissionError):  # the process has a lower priority already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    return work()


class PartsStack(AsyncExitStack):
    """Stops the parts that were pushed, the last one first, by ``aclose``; they run on `reactor`."""

    def __init__(self, reactor: EPollReactor) -> None:
        super().__init__()
        self.reactor = reactor

    def call_every(
        self, seconds: float, task: Callable[[], Awaitable[object] | None], *, now: bool = False
    ) -> None:
        """Call a task periodically; a failure is logged and stops nothing.

        Args:
            seconds: between two calls; one that takes longer delays the next one.
            task: is not called again before its result is there.
            now: call it the first time at once, not after `seconds`.
        """

        def attempt() -> Deferred[object]:
            done = maybeDeferred(task)
            return done.addErrback(lambda failure: _log.failure("a periodic task failed", failure=failure))

        loop = LoopingCall(attempt)
        loop.clock = self.reactor
        loop.start(seconds, now=now)
        self.callback(loop.stop)

    def in_thread_pool(
        self, threads: int, name: str, *, low_priority: bool = False
    ) -> Callable[[Callable[[], T]], Deferred[T]]:
        """Start a pool of at most `threads` threads, and return a function that runs work in it."""
        pool = self.start_thread_pool(threads, name)

        def run(work: Callable[[], T], /) -> Deferred[T]:
            if low_priority:
                return deferToThreadPool(self.reactor, pool, run_at_low_priority, work)
            return deferToThreadPool(self.reactor, pool, work)

        return run

    def start_thread_pool(self, threads: int, name: str) -> ThreadPool:
        """Start a pool of at most `threads` threads."""
        pool = ThreadPool(0, threads, name)
        pool.start()
        self.callback(pool.stop)
        return pool
