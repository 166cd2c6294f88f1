"""A worker that does not answer, with the time in the test's hand."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from image_service.app.workers.watchdog import MOST_UNANSWERED, PING_SECONDS, Watchdog


class Worker:
    """Is pinged, and answers as long as it lives."""

    def __init__(self, clock: Clock) -> None:
        self.lives = True
        self.pings = 0
        self.found_stuck = 0
        self.watchdog = Watchdog(clock, self._pinged, self._stuck)

    def _pinged(self) -> None:
        self.pings += 1
        if self.lives:
            self.watchdog.heard()

    def _stuck(self) -> None:
        self.found_stuck += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(clock: Clock) -> Worker:
    return Worker(clock)


def test_who_answers_is_left_alone(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    clock.pump([PING_SECONDS] * 100)
    assert (worker.pings, worker.found_stuck) == (101, 0)


def test_who_does_not_answer_is_stuck_once(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.lives = False
    clock.pump([PING_SECONDS] * MOST_UNANSWERED)
    assert worker.found_stuck == 0
    clock.pump([PING_SECONDS] * 100)
    assert (worker.found_stuck, worker.pings) == (1, 1 + MOST_UNANSWERED)
    assert clock.getDelayedCalls() == []


def test_who_answers_late_is_not_stuck(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.lives = False
    for _ in range(10):
        clock.pump([PING_SECONDS] * (MOST_UNANSWERED - 1))
        worker.watchdog.heard()
    assert worker.found_stuck == 0


def test_time_in_which_the_supervisor_did_nothing_does_not_count(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.lives = False
    clock.pump([3600] * (MOST_UNANSWERED - 1))
    assert worker.found_stuck == 0


def test_the_next_one_in_its_place_is_watched_afresh(worker: Worker, clock: Clock) -> None:
    worker.watchdog.start()
    worker.lives = False
    clock.pump([PING_SECONDS] * (MOST_UNANSWERED - 1))
    worker.watchdog.stop()
    assert clock.getDelayedCalls() == []
    worker.watchdog.stop()
    worker.watchdog.start()
    worker.watchdog.start()
    clock.pump([PING_SECONDS] * (MOST_UNANSWERED - 1))
    assert worker.found_stuck == 0
