"""Machines that stand still for a moment: what a test measures meanwhile says nothing about a service."""

from __future__ import annotations

import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

ALLOWED_SECONDS = 1.0
"""For so long a machine may stand still during a measurement; the limits of tests have room for that."""
_POLL_SECONDS = 0.05
_LEAST_SECONDS = 0.2
"""Of a standstill; a busy machine lets a thread sleep a little too long each time."""


@attrs.define
class Standstills:
    """Measures how much longer than asked for a thread sleeps that does nothing else."""

    _found: list[tuple[float, float]] = attrs.field(factory=list)
    """When each sleep was to end, and when it ended."""
    _due: float = 0.0
    """When the sleep in progress is to end."""

    def seconds_since(self, began: float) -> float:
        """Return for how long the machine has stood still since an instant of the monotonic clock."""
        intervals = (*self._found, (self._due, time.monotonic()))
        stood_still = (max(0.0, until - max(began, since)) for since, until in intervals)
        return sum(seconds for seconds in stood_still if seconds > _LEAST_SECONDS)

    @contextmanager
    def measured(self) -> Iterator[Standstills]:
        """Measure until the block ends."""
        ended = Event()
        self._due = time.monotonic() + _POLL_SECONDS
        thread = Thread(target=self._measure, args=(ended,))
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    def _measure(self, ended: Event) -> None:
        while not ended.is_set():
            self._due = time.monotonic() + _POLL_SECONDS
            time.sleep(_POLL_SECONDS)
            self._found.append((self._due, time.monotonic()))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call, and how long it took; repeat it if the machine stood still meanwhile."""
    while True:
        with Standstills().measured() as machine:
            began = time.monotonic()
            result = call()
            seconds, stood_still = time.monotonic() - began, machine.seconds_since(began)
        if stood_still < ALLOWED_SECONDS:
            return result, seconds
