from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from twisted.internet.task import Clock, deferLater

from image_service.common.concurrency.process_parts import NICENESS, PartsStack, run_at_low_priority
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from tests.conftest import LoggedFailures


@ensure_deferred
async def test_parts_stop_in_reverse_order(reactor: EPollReactor) -> None:
    stopped: list[str] = []

    async def stop_slowly() -> None:
        await deferLater(reactor, 0.0)
        stopped.append("second")

    parts = PartsStack(reactor)
    parts.callback(stopped.append, "first")
    parts.push_async_callback(stop_slowly)
    parts.callback(stopped.append, "third")
    await parts.aclose()
    assert stopped == ["third", "second", "first"]


@ensure_deferred
async def test_work_runs_in_threads_until_the_pool_stops(reactor: EPollReactor) -> None:
    parts = PartsStack(reactor)
    in_thread = parts.in_thread_pool(1, "test")
    assert await in_thread(threading.get_ident) != threading.get_ident()
    pool = parts.start_thread_pool(2, "other")
    assert (pool.max, pool.started) == (2, True)
    await parts.aclose()
    assert not pool.started


@ensure_deferred
async def test_periodic_task_is_called_until_the_end_even_if_it_fails(
    logged_failures: LoggedFailures,
) -> None:
    clock, calls = Clock(), list[float]()
    parts = PartsStack(cast("EPollReactor", clock))

    def task() -> None:
        calls.append(clock.seconds())
        raise OSError

    parts.call_every(10, task)
    clock.pump([10, 10, 5])
    assert calls == [10, 20]
    assert len(logged_failures.flush(OSError)) == 2
    await parts.aclose()
    clock.advance(100)
    assert calls == [10, 20]


@ensure_deferred
async def test_periodic_task_may_be_called_at_once() -> None:
    clock, calls = Clock(), list[float]()
    parts = PartsStack(cast("EPollReactor", clock))
    parts.call_every(10, lambda: calls.append(clock.seconds()), now=True)
    clock.advance(10)
    assert calls == [0, 10]
    await parts.aclose()


@ensure_deferred
async def test_work_of_a_low_priority_pool_runs_at_low_priority(reactor: EPollReactor) -> None:
    parts = PartsStack(reactor)
    in_thread = parts.in_thread_pool(1, "test", low_priority=True)
    assert await in_thread(priority) == max(priority(), NICENESS)
    await parts.aclose()


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_low_priority_is_that_of_the_thread_alone() -> None:
    own = priority()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_at_low_priority, priority).result() == max(own, NICENESS)
    assert priority() == own
