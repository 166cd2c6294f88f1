"""A load test from its first connection to its last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import LoopingCall

from image_service.loadtest.check import Checker, DigestCheck
from image_service.loadtest.client import Client
from image_service.loadtest.course import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from twisted.python.failure import Failure

    from image_service.loadtest.dialer import Dialer, Reactor
    from image_service.loadtest.plan import Plan
    from image_service.loadtest.tally import Interval

PATIENCE_SECONDS = 3.0
"""How long, in the end, requests under way may take to be answered: what firmware is promised."""
_TICK_SECONDS = 1.0


class Expiring(Protocol):
    """Waits for answers."""

    def expire(self) -> None:
        """Give up an answer that does not go on."""


class Run:
    """Drives all clients.

    Args:
        reactor: the reactor.
        plan: what is done.
        dialer: makes connections.
        show: told of each second that has gone by.
        clock: seconds, for measuring.

    Attributes:
        course: what was counted.
        seconds: how long the clients were at work.
        byte_count: what they read.
        cpu_share: of one processor, that this process used meanwhile.
        checks: images that were read whole in the end.
        was_interrupted: somebody ended it.
    """

    def __init__(
        self,
        reactor: Reactor,
        plan: Plan,
        dialer: Dialer,
        show: Callable[[Interval], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.course = Course(reactor, plan, dialer, clock)
        self.seconds = 0.0
        self.byte_count = 0
        self.cpu_share = 0.0
        self.checks: list[DigestCheck] = []
        self.was_interrupted = False
        self._reactor = reactor
        self._plan = plan
        self._dialer = dialer
        self._show = show
        self._running: list[Deferred[None]] = []

    async def drive(self) -> None:
        """Run the test to its end, or until ``interrupt``."""
        cpu = time.process_time()
        clients = [Client(self.course, number) for number in range(self._plan.clients)]
        ticks = LoopingCall(self._tick, clients)
        ticks.clock = self._reactor
        ticks.start(_TICK_SECONDS, now=False)
        overdue = self._reactor.callLater(self._plan.seconds + PATIENCE_SECONDS, self._cancel, overdue=True)
        try:
            await self._together(client.run() for client in clients)
        finally:
            ticks.stop()
            if overdue.active():
                overdue.cancel()
            self._sum_up(cpu)
        if not self.was_interrupted:
            await self._together([self._check()])

    def interrupt(self) -> None:
        """End it now; what was counted stays."""
        self.was_interrupted = True
        self._cancel(overdue=False)

    def _cancel(self, *, overdue: bool) -> None:
        self.course.end(overdue=overdue)
        for running in self._running:
            running.cancel()

    async def _together(self, work: Iterable[Coroutine[Deferred[None], object, None]]) -> None:
        """Run all; a fault of ours in one of them ends the others."""
        self._running = [Deferred.fromCoroutine(each).addErrback(_trap_cancelled) for each in work]
        try:
            await gatherResults(self._running, consumeErrors=True)
        finally:
            self._cancel(overdue=False)

    async def _check(self) -> None:
        checker = Checker(self.course, self._dialer, self._reactor)
        ticks = LoopingCall(checker.expire)
        ticks.clock = self._reactor
        ticks.start(_TICK_SECONDS)
        try:
            for image in range(min(self._plan.checks, len(self._plan.targets))):
                self.checks.append(await checker.check(image))
        finally:
            ticks.stop()

    def _tick(self, clients: Iterable[Expiring]) -> None:
        for client in clients:
            client.expire()
        self._show(self.course.tally.end_interval(self.course.elapsed_seconds))

    def _sum_up(self, cpu: float) -> None:
        tally = self.course.tally
        self.seconds = self.course.elapsed_seconds
        self.byte_count = tally.byte_count
        self.cpu_share = (time.process_time() - cpu) / max(self.seconds, 1e-6)
        if self.seconds - sum(interval.seconds for interval in tally.intervals) >= _TICK_SECONDS / 4:
            tally.end_interval(self.seconds)  # a shorter one would only be a spike


def _trap_cancelled(failure: Failure) -> None:
    failure.trap(CancelledError)
