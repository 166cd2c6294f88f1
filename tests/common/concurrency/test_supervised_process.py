"""Child processes that are started again, with real processes and a clock that the test advances."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from image_service.common.concurrency.supervised_process import ChildProcess, SupervisedProcess
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

STOP_SECONDS = 10.0


class Children:
    """Processes of a shell script, and the clock of their supervisor."""

    def __init__(self, reactor: EPollReactor, script: str) -> None:
        self.clock = Clock()
        self.started: list[ChildProcess] = []
        self._reactor = reactor
        self._script = script
        self.supervised = SupervisedProcess(self.clock, "the child", self._spawn, STOP_SECONDS)

    def _spawn(self, process: ChildProcess) -> None:
        self.started.append(process)
        self._reactor.spawnProcess(process, "/bin/sh", ["sh", "-c", self._script], {})

    async def until_ended(self) -> None:
        ended: Deferred[None] = Deferred()

        def pass_on(reason: str) -> str:
            ended.callback(None)
            return reason

        self.started[-1].ended.addCallback(pass_on)
        await ended


@pytest.mark.parametrize("count", [1, 3])
@ensure_deferred
async def test_process_that_ends_is_started_again_later_each_time(reactor: EPollReactor, count: int) -> None:
    children = Children(reactor, "echo broken; exit 3")
    children.supervised.start()
    with capturedLogs() as events:
        for _ in range(count):
            await children.until_ended()
            assert children.supervised.pid is None
            (restart,) = children.clock.getDelayedCalls()
            children.clock.advance(restart.getTime() - children.clock.seconds())
    assert children.supervised.restarts == count
    texts = [formatEvent(event) for event in events if event["log_level"].name == "error"]
    assert len(texts) == count
    assert all("the child has ended: " in text and "broken" in text for text in texts)
    await children.until_ended()
    await children.supervised.stop()


@ensure_deferred
async def test_stopped_process_is_not_started_again(reactor: EPollReactor) -> None:
    children = Children(reactor, "exec sleep 100")
    children.supervised.start()
    await children.supervised.stop()
    assert (len(children.started), children.clock.getDelayedCalls()) == (1, [])


@ensure_deferred
async def test_process_that_does_not_end_is_killed(reactor: EPollReactor) -> None:
    children = Children(reactor, 'trap "" TERM; echo ready; while :; do sleep 0.1; done')
    children.supervised.start()
    await ready(children.started[0], reactor)
    stopping = Deferred.fromCoroutine(children.supervised.stop())
    children.clock.advance(STOP_SECONDS)
    await stopping
    assert children.clock.getDelayedCalls() == []


@ensure_deferred
async def test_signal_to_a_process_that_has_ended_is_ignored(reactor: EPollReactor) -> None:
    children = Children(reactor, "exit 0")
    children.supervised.start()
    await children.until_ended()
    children.started[0].signal(signal.SIGTERM)
    await children.supervised.stop()


async def ready(process: ChildProcess, reactor: EPollReactor) -> None:
    while not process.last_line:
        turn: Deferred[None] = Deferred()
        reactor.callLater(0.01, turn.callback, None)
        await turn
