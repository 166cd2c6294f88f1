"""A worker that does not respond, on a fake clock."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from image_service.server.processes.watchdog import MAX_UNANSWERED, PING_SECONDS, Watchdog


class Worker:
    """Responds to pings as long as it is told to."""

    def __init__(self, clock: Clock) -> None:
        self.responds = True
        self.pings = 0
        self.found_stuck = 0
        self.watchdog = Watchdog(clock, self._pinged, self._stuck)

    def _pinged(self) -> None:
        self.pings += 1
        if self.responds:
            self.watchdog.pong_received()

    def _stuck(self) -> None:
        self.found_stuck += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(clock: Clock) -> Worker:
    return Worker(clock)


def test_responding_worker_is_not_stuck(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    clock.pump([PING_SECONDS] * 100)
    assert (worker.pings, worker.found_stuck) == (101, 0)


def test_silent_worker_is_reported_stuck_once(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.responds = False
    clock.pump([PING_SECONDS] * MAX_UNANSWERED)
    assert worker.found_stuck == 0
    clock.pump([PING_SECONDS] * 100)
    assert (worker.found_stuck, worker.pings) == (1, 1 + MAX_UNANSWERED)
    assert clock.getDelayedCalls() == []


def test_late_response_resets_the_count(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.responds = False
    for _ in range(10):
        clock.pump([PING_SECONDS] * (MAX_UNANSWERED - 1))
        worker.watchdog.pong_received()
    assert worker.found_stuck == 0


def test_time_without_pings_does_not_count(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.responds = False
    clock.pump([3600] * (MAX_UNANSWERED - 1))
    assert worker.found_stuck == 0


def test_restarted_watchdog_counts_from_zero(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.responds = False
    clock.pump([PING_SECONDS] * (MAX_UNANSWERED - 1))
    worker.watchdog.stop()
    assert clock.getDelayedCalls() == []
    worker.watchdog.stop()
    worker.watchdog.start()
    worker.watchdog.start()
    clock.pump([PING_SECONDS] * (MAX_UNANSWERED - 1))
    assert worker.found_stuck == 0
