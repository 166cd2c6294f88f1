"""Simulated time: events of all machines in one order, which one source of chance decides."""

from __future__ import annotations

import gc
import heapq
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from twisted.internet.base import DelayedCall
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from twisted.internet.interfaces import IDelayedCall

T = TypeVar("T")

START = 1_700_000_000.0
"""Seconds since 1970 at which each history begins."""


@attrs.frozen
class Outcome:
    """What became of a history; ``trace`` is the same whenever its seed is carried out."""

    trace: str
    faults: tuple[str, ...]
    simulated_seconds: float


@attrs.define(eq=False)
class Events:
    """What is going to happen. Chance decides the order of what happens at the same instant.

    Args:
        chance: of the history; everything that varies asks it.
        now: simulated seconds since 1970.
        trace: what has happened, a line each.
    """

    chance: Random
    now: float = START
    trace: list[str] = attrs.field(factory=list)
    running: Machine | None = None
    """Whose call is being made."""
    _due: list[tuple[float, float, int, Machine, DelayedCall]] = attrs.field(factory=list)
    _numbers: count[int] = attrs.field(factory=count)

    def add(self, machine: Machine, call: DelayedCall) -> None:
        """Have a call made when it is due."""
        heapq.heappush(self._due, (call.getTime(), self.chance.random(), next(self._numbers), machine, call))

    def run_next(self, end: float) -> bool:
        """Make the next call; return False, at the end, if none is due until then."""
        if not self._due or self._due[0][0] > end:
            self.now = end
            return False
        at, _, _, machine, call = heapq.heappop(self._due)
        self.now = max(self.now, at)
        machine.make(call)
        return True

    def wall_clock(self) -> float:
        """Return what the clock of the running machine shows."""
        return self.now + (0.0 if self.running is None else self.running.clock_step)

    def record(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now - START:10.4f} {line}")


@implementer(IReactorTime)
@attrs.define(eq=False)
class Machine:
    """What runs, pauses, or ends as a whole. Its clock goes on while it is paused."""

    events: Events
    name: str
    is_dead: bool = False
    paused_since: float | None = None
    latest_pause: float = 0.0
    """When it was last paused; simulated seconds."""
    clock_step: float = 0.0
    """By how many seconds its wall clock is ahead."""
    _overdue: list[DelayedCall] = attrs.field(factory=list)

    def seconds(self) -> float:
        """As `IReactorTime.seconds`."""
        return self.events.now

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kw: Any) -> IDelayedCall:  # noqa: A002 - the interface's name
        """As `IReactorTime.callLater`."""
        call = DelayedCall(
            self.events.now + delay,
            callable,
            args,
            kw,
            _ignore,
            self._put_off,
            self.seconds,
        )
        self.events.add(self, call)
        return call

    def _put_off(self, call: DelayedCall) -> None:
        self.events.add(self, call)

    def callFromThread(self, call: Callable[..., Any], *args: Any) -> None:
        """As `IReactorFromThreads.callFromThread`."""
        self.callLater(0, call, *args)

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        """As `IReactorTime.getDelayedCalls`."""
        return [call for _, _, _, machine, call in self.events._due if machine is self and is_pending(call)]

    def make(self, call: DelayedCall) -> None:
        """Make a call, unless it was canceled; at the end of a pause, if there is one."""
        if self.is_dead or not is_pending(call):
            return
        if self.paused_since is not None:
            self._overdue.append(call)
        elif call.getTime() > self.events.now:  # it was put off
            self.events.add(self, call)
        else:
            call.called = 1
            self.run(call.func, *call.args, **call.kw)

    def run(self, work: Callable[..., T], *args: Any, **kw: Any) -> T:
        """Have this machine do work, which sees its wall clock."""
        outer, self.events.running = self.events.running, self
        try:
            return work(*args, **kw)
        finally:
            self.events.running = outer

    def pause(self) -> None:
        """Stop, as by SIGSTOP."""
        if self.paused_since is None:
            self.paused_since = self.events.now

    def resume(self) -> None:
        """Go on with what is overdue, in its order."""
        if self.paused_since is not None:
            self.paused_since, self.latest_pause = None, self.events.now
            overdue, self._overdue = self._overdue, []
            for call in overdue:
                self.make(call)

    def kill(self) -> None:
        """End, as by SIGKILL: nothing that it has begun goes on."""
        self.is_dead = True


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect the garbage of other histories now, and none meanwhile.

    Coroutines of killed processes end when they are collected, and when that is depends on what else this
    process has done.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _ignore(_: object) -> None: ...


def is_pending(call: DelayedCall) -> bool:
    """Return True if a call was neither made nor canceled."""
    return not (call.called or call.cancelled)
