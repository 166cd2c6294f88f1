"""A worker slot whose worker cannot be started, exits, or is stuck; processes are doubles."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import Clock

from image_service.server.processes.process_slot import ProcessSlot
from image_service.server.processes.watchdog import MAX_UNANSWERED, PING_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.admin.activity import Collected
    from image_service.server.processes.process_slot import Handlers


class RecordingObserver:
    """Records what happens in slots."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def process_serves(self, _: ProcessSlot) -> None:
        self.events.append("serves")

    def process_exited(self, _: ProcessSlot) -> None:
        self.events.append("exited")

    def page_requested(self, _: ProcessSlot) -> None:
        self.events.append("page requested")

    def activity_received(self, collected: Collected) -> None:
        self.events.append(f"{len(collected['reads'])} reads")

    def status_received(self, text: str) -> None:
        self.events.append(text)

    def start_failed(self, status: int | None) -> None:
        self.events.append(f"start failed: {status}")


class FakeProcesses:
    """Spawns processes that are this object; the latest one is in the test's hand."""

    def __init__(self) -> None:
        self.handlers: Handlers = {}
        self.exited: Callable[[str, int | None], None] = lambda *_: None
        self.can_start = True
        self.responds = True
        self.received: list[str] = []

    def spawn(self, handlers: Handlers, exited: Callable[[str, int | None], None]) -> FakeProcesses:
        if not self.can_start:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.handlers, self.exited = handlers, exited
        return self

    def send(self, word: str, _: object = None) -> None:
        self.received.append(word)
        if word == "ping" and self.responds:
            self.handlers["pong"](None)

    def kill(self) -> None:
        self.exited("killed", None)

    def serve(self) -> None:
        self.handlers["serving"](None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def slot(clock: Clock, processes: FakeProcesses, observer: RecordingObserver) -> ProcessSlot:
    return ProcessSlot(clock, 0, processes.spawn, observer)


def test_worker_restart_is_retried_when_fork_fails(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses, observer: RecordingObserver
) -> None:
    slot.start()
    processes.serve()
    processes.can_start = False
    processes.exited("killed", None)
    assert len(clock.getDelayedCalls()) == 1  # the restart; nothing is pinged
    clock.pump([40] * 3)
    assert observer.events == ["serves", "exited"]
    assert slot.starts == 4
    processes.can_start = True
    clock.advance(40)
    processes.serve()
    assert observer.events == ["serves", "exited", "serves"]
    assert slot.is_serving


def test_first_start_that_fails_is_reported(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses, observer: RecordingObserver
) -> None:
    processes.can_start = False
    slot.start()
    assert observer.events == ["start failed: None"]
    assert clock.getDelayedCalls() == []


def test_worker_that_exits_before_it_serves_is_reported(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses, observer: RecordingObserver
) -> None:
    slot.start()
    processes.exited("exit status 1", 1)
    assert observer.events == ["exited", "start failed: 1"]
    assert clock.getDelayedCalls() == []


def test_page_request_is_passed_on(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses, observer: RecordingObserver
) -> None:
    slot.start()
    processes.handlers["page"](None)
    assert observer.events == ["page requested"]
    assert clock.getDelayedCalls() == []


def test_metrics_are_collected_from_a_serving_worker_only(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses
) -> None:
    slot.start()
    assert slot.collect_metrics().called
    assert processes.received == []
    processes.serve()
    collected = slot.collect_metrics()
    assert (collected.called, processes.received) == (False, ["ping", "collect"])
    processes.handlers["metrics"]([])
    assert collected.called
    slot.stop(None)
    processes.exited("done", 0)
    assert clock.getDelayedCalls() == []


def test_stuck_worker_is_killed_and_restarted(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses, observer: RecordingObserver
) -> None:
    slot.start()
    clock.pump([PING_SECONDS] * 100)
    assert clock.getDelayedCalls() == []  # a worker is not pinged before it serves
    processes.serve()
    clock.pump([PING_SECONDS] * 100)
    assert slot.starts == 1
    processes.responds = False
    clock.pump([PING_SECONDS] * (MAX_UNANSWERED + 2))
    assert (slot.starts, observer.events) == (2, ["serves", "exited"])


@pytest.mark.parametrize("serving", [False, True])
def test_stop_waits_for_a_worker_as_long_as_it_responds(
    slot: ProcessSlot, clock: Clock, processes: FakeProcesses, serving: object
) -> None:
    slot.start()
    if serving:
        processes.serve()
    stopped = slot.stop(None)
    assert processes.received[-1] == "stop"
    clock.pump([PING_SECONDS] * 100)
    assert not stopped.called
    processes.responds = False
    clock.pump([PING_SECONDS] * (MAX_UNANSWERED + 1))
    assert (stopped.called, slot.starts, clock.getDelayedCalls()) == (True, 1, [])


def test_stop_cancels_a_restart(slot: ProcessSlot, clock: Clock, processes: FakeProcesses) -> None:
    slot.start()
    processes.serve()
    processes.exited("killed", None)
    assert slot.stop(None).called
    assert (slot.starts, clock.getDelayedCalls()) == (1, [])
