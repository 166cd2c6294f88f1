"""The supervisor with doubles for its workers' processes, on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs
from twisted.internet.task import Clock

from image_service.app.workers.supervisor import Supervisor
from image_service.observability.merging import export
from image_service.observability.metrics import Metrics
from image_service.settings.network import ProcessSettings
from image_service.settings.settings import Settings
from image_service.snapshots.model import SnapshotEvent
from tests.pytwisted import async_fixture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twisted.internet.epollreactor import EPollReactor

    from image_service.app.workers.worker_process import Assignment
    from image_service.app.workers.worker_slot import Handlers

WORKERS = 3


@attrs.define(eq=False)
class FakeProcess:
    """A worker's process, which the test drives; it exits when it is told to stop."""

    handlers: Handlers
    exited: Callable[[str], None]
    received: list[tuple[str, object]] = attrs.field(factory=list)

    def send(self, word: str, value: object = None) -> None:
        if word != "ping":
            self.received.append((word, value))
        if word == "stop":
            self.exited("stopped")

    def kill(self) -> None:
        self.exited("killed")

    def say(self, word: str, value: Any = None) -> None:
        self.handlers[word](value)


@attrs.define
class Supervised:
    """A supervisor and the latest process of each worker."""

    clock: Clock = attrs.field(factory=Clock)
    workers: dict[int, FakeProcess] = attrs.field(factory=dict)
    supervisor: Supervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = Settings(process=ProcessSettings(workers=WORKERS))
        reactor = cast("EPollReactor", self.clock)
        self.supervisor = Supervisor(reactor, settings, standalone=False, spawn=self._spawn)
        self.supervisor.startService()

    def _spawn(
        self, _: object, assignment: Assignment, __: object, handlers: Handlers, exited: Callable[[str], None]
    ) -> FakeProcess:
        self.workers[assignment.worker] = FakeProcess(handlers, exited)
        return self.workers[assignment.worker]

    def serve(self, *workers: int) -> None:
        for worker in workers:
            self.workers[worker].say("serving")

    def received(self) -> list[tuple[int, str, object]]:
        """What the workers received since the last call, without pings."""
        found = [(number, *each) for number, worker in self.workers.items() for each in worker.received]
        for worker in self.workers.values():
            worker.received.clear()
        return sorted(found)


@async_fixture
async def supervised() -> AsyncIterator[Supervised]:
    supervised = Supervised()
    yield supervised
    await supervised.supervisor.stopService()
    assert supervised.clock.getDelayedCalls() == []


def test_first_worker_that_serves_adopts_the_connections_of_the_others(supervised: Supervised) -> None:
    supervised.serve(1)
    assert supervised.received() == [(1, "adopt", 0), (1, "adopt", 2)]
    supervised.serve(0)
    assert supervised.received() == [(1, "release", 0)]
    supervised.serve(2)
    assert supervised.received() == [(1, "release", 2)]


def test_connections_of_an_exited_worker_are_adopted_until_it_serves_again(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    supervised.received()
    supervised.workers[2].exited("killed")
    assert supervised.received() == [(0, "adopt", 2)]
    supervised.clock.advance(1)
    supervised.serve(2)
    assert supervised.received() == [(0, "release", 2)]


def test_substitute_that_exits_is_substituted_too(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    supervised.workers[2].exited("killed")
    supervised.received()
    supervised.workers[0].exited("killed")
    assert supervised.received() == [(1, "adopt", 0), (1, "adopt", 2)]


def exported(snapshot_hits: int) -> object:
    metrics = Metrics()
    for _ in range(snapshot_hits):
        metrics.record_snapshot_event(SnapshotEvent.HIT)
    return export(metrics.collect())


def test_metrics_page_sums_serving_and_exited_workers(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    supervised.received()
    supervised.workers[0].say("page")
    assert supervised.received() == [(worker, "collect", None) for worker in range(WORKERS)]
    for worker in range(WORKERS):
        supervised.workers[worker].say("metrics", exported(worker + 1))
    ((worker, word, page),) = supervised.received()
    assert (worker, word) == (0, "page")
    body, content_type = cast("tuple[str, str]", page)
    assert content_type.startswith("text/plain")
    assert hits_in(body) == 1 + 2 + 3

    supervised.workers[2].exited("killed")
    supervised.workers[1].say("page")
    supervised.received()
    for worker in range(2):
        supervised.workers[worker].say("metrics", exported(10))
    ((_, _, page),) = supervised.received()
    assert hits_in(cast("tuple[str, str]", page)[0]) == 10 + 10 + 3


def hits_in(page: str) -> float:
    (line,) = (
        line for line in page.splitlines() if line.startswith("assisted_image_service_snapshot_hits_total ")
    )
    return float(line.split()[-1])
