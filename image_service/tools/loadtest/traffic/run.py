"""Runs a load test from its first connection to its last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.task import LoopingCall

from image_service.tools.loadtest.traffic.client import LoadClient
from image_service.tools.loadtest.traffic.compose_client import ComposeLoadClient
from image_service.tools.loadtest.traffic.image_check import DigestCheck, ImageChecker
from image_service.tools.loadtest.traffic.profiles import Profile
from image_service.tools.loadtest.traffic.run_state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from twisted.python.failure import Failure

    from image_service.tools.loadtest.traffic.counters import Interval
    from image_service.tools.loadtest.traffic.dialer import ClientReactor, Dialer
    from image_service.tools.loadtest.traffic.fleet_result import FleetResult
    from image_service.tools.loadtest.traffic.plan import Plan
    from image_service.tools.loadtest.traffic.verification import ReadComparer

OVERDUE_SECONDS = 3.0
"""Time that outstanding requests have at the end: the limit of firmware for a first byte."""
_TICK_SECONDS = 1.0


class Run:
    """Runs all clients.

    Args:
        show: called with each interval that has passed.
        clock: seconds, for measuring.
        blocks: compares what is read; None: with earlier reads.

    Attributes:
        state: shared by the clients, with the counters.
        seconds: how long the clients were active.
        cpu_share: of one processor, used by this process meanwhile.
        checks: images that were read whole at the end.
        was_interrupted: the run was ended early.
    """

    def __init__(  # noqa: PLR0913 - two have defaults
        self,
        reactor: ClientReactor,
        plan: Plan,
        dialer: Dialer,
        show: Callable[[Interval], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        blocks: ReadComparer | None = None,
    ) -> None:
        self.state = RunState(reactor, plan, dialer, clock, blocks)
        self.seconds = 0.0
        self.cpu_share = 0.0
        self.checks: list[DigestCheck] = []
        self.was_interrupted = False
        self._reactor = reactor
        self._plan = plan
        self._dialer = dialer
        self._show = show
        self._running: list[Deferred[None]] = []

    async def run(self) -> None:
        """Run to the end, or until `interrupt`."""
        cpu_seconds = time.process_time()
        clients = self._make_clients()
        ticks = self._start_ticks(lambda: self._tick(clients))
        overdue = self._reactor.callLater(self._plan.seconds + OVERDUE_SECONDS, self._cancel, overdue=True)
        try:
            await self._gather([*(client.run() for client in clients), *self._accompany()])
        finally:
            ticks.stop()
            if overdue.active():
                overdue.cancel()
            self._sum_up(cpu_seconds)
        if not self.was_interrupted:
            await self._gather([self._check_images()])

    @property
    def fleet_result(self) -> FleetResult | None:
        """How a fleet fared; None: it is another load test."""
        return None

    def _make_clients(self) -> Sequence[LoadClient]:
        client_class = ComposeLoadClient if self._plan.profile is Profile.COMPOSER else LoadClient
        return [client_class(self.state, number) for number in range(self._plan.clients)]

    def _accompany(self) -> Iterable[Coroutine[Deferred[None], object, None]]:
        """Return what happens beside the clients; the run lasts until that has ended too."""
        return ()

    def interrupt(self) -> None:
        """Stop now; the counts remain."""
        self.was_interrupted = True
        self._cancel(overdue=False)

    def _cancel(self, *, overdue: bool) -> None:
        self.state.stop(overdue=overdue)
        for running in self._running:
            running.cancel()

    async def _gather(self, coroutines: Iterable[Coroutine[Deferred[None], object, None]]) -> None:
        """Run all; an unexpected exception in one cancels the others."""
        self._running = [Deferred.fromCoroutine(each).addErrback(_trap_cancelled) for each in coroutines]
        try:
            await gatherResults(self._running, consumeErrors=True)
        finally:
            self._cancel(overdue=False)

    async def _check_images(self) -> None:
        checker = ImageChecker(self.state, self._dialer, self._reactor)
        ticks = self._start_ticks(checker.check_timeout)
        try:
            for image in range(min(self._plan.checks, len(self._plan.targets))):
                self.checks.append(await checker.check_image(image))
        finally:
            ticks.stop()

    def _start_ticks(self, tick: Callable[[], None]) -> LoopingCall:
        ticks = LoopingCall(tick)
        ticks.clock = self._reactor
        ticks.start(_TICK_SECONDS, now=False)
        return ticks

    def _tick(self, clients: Sequence[LoadClient]) -> None:
        for client in clients:
            client.check_timeout()
        self._show(self.state.counters.close_interval(self.state.elapsed_seconds))

    def _sum_up(self, cpu_seconds: float) -> None:
        counters = self.state.counters
        self.seconds = self.state.elapsed_seconds
        self.cpu_share = (time.process_time() - cpu_seconds) / max(self.seconds, 1e-6)
        if self.seconds - sum(interval.seconds for interval in counters.intervals) >= _TICK_SECONDS / 4:
            counters.close_interval(self.seconds)  # a shorter one would only be a spike


def _trap_cancelled(failure: Failure) -> None:
    failure.trap(CancelledError, ConnectingCancelledError)
