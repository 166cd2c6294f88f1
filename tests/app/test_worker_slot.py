"""A worker's place: what it does when nobody can be started in it, or who works there is stuck."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, cast

import pytest
from twisted.internet.task import Clock

from image_service.app.workers import worker_slot as places
from image_service.app.workers.assignment import Assignment
from image_service.app.workers.watchdog import MOST_UNANSWERED, PING_SECONDS
from image_service.app.workers.worker_slot import WorkerSlot

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor


class Watch:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def serves(self, _: WorkerSlot) -> None:
        self.told.append("serves")

    def left(self, _: WorkerSlot) -> None:
        self.told.append("left")

    def asks_for_page(self, _: WorkerSlot) -> None:
        self.told.append("asks for page")

    def cannot_start(self) -> None:
        self.told.append("cannot start")


class Processes:
    """Stands for ``WorkerProcess``; each process is this as well."""

    def __init__(self) -> None:
        self.hears: dict[str, Any] = {}
        self.ended: Any = None
        self.may_start = True
        self.answers = True

    def say(self, word: str, _: object) -> None:
        if word == "ping" and self.answers:
            self.hears["pong"](None)

    def kill(self) -> None:
        self.ended("killed")

    def __call__(self, _: object, __: object, ___: object, hears: dict[str, Any], ended: object) -> object:
        if not self.may_start:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.hears, self.ended = hears, ended
        return self


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    monkeypatch.setattr(places, "WorkerProcess", processes)
    return processes


def place(clock: Clock, watch: Watch) -> WorkerSlot:
    return WorkerSlot(cast("EPollReactor", clock), Assignment(0, 2, 1, None), {}, watch)


def test_who_cannot_be_started_again_now_is_later(processes: Processes) -> None:
    clock, watch = Clock(), Watch()
    of_worker = place(clock, watch)
    of_worker.start()
    processes.hears["serving"](None)
    processes.may_start = False
    processes.ended("killed")
    assert len(clock.getDelayedCalls()) == 1  # to start another; nobody is pinged
    clock.pump([40] * 3)
    assert watch.told == ["serves", "left"]
    assert of_worker.starts == 4
    processes.may_start = True
    clock.advance(40)
    processes.hears["serving"](None)
    assert watch.told == ["serves", "left", "serves"]
    assert of_worker.serving


def test_who_cannot_be_started_at_first_is_told(processes: Processes) -> None:
    clock, watch = Clock(), Watch()
    processes.may_start = False
    place(clock, watch).start()
    assert watch.told == ["cannot start"]
    assert clock.getDelayedCalls() == []


def test_who_is_stuck_is_replaced(processes: Processes) -> None:
    clock, watch = Clock(), Watch()
    of_worker = place(clock, watch)
    of_worker.start()
    clock.pump([PING_SECONDS] * 100)
    assert clock.getDelayedCalls() == []  # who only starts is not waited for by anybody
    processes.hears["serving"](None)
    clock.pump([PING_SECONDS] * 100)
    assert of_worker.starts == 1
    processes.answers = False
    clock.pump([PING_SECONDS] * (MOST_UNANSWERED + 2))
    assert (of_worker.starts, watch.told) == (2, ["serves", "left"])


@pytest.mark.parametrize("serving", [False, True])
def test_the_end_waits_for_who_answers_and_for_nobody_else(processes: Processes, serving: object) -> None:
    clock, watch = Clock(), Watch()
    of_worker = place(clock, watch)
    of_worker.start()
    if serving:
        processes.hears["serving"](None)
    gone = of_worker.end(None)
    clock.pump([PING_SECONDS] * 100)
    assert not gone.called
    processes.answers = False
    clock.pump([PING_SECONDS] * (MOST_UNANSWERED + 1))
    assert (gone.called, of_worker.starts, clock.getDelayedCalls()) == (True, 1, [])
