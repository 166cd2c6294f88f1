"""The supervisor with doubles for its workers' processes, on a fake clock."""

from __future__ import annotations

import os
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from image_service.app.admin.base_url import BaseUrl
from image_service.app.processes.serving_process import CREDENTIALS
from image_service.app.processes.supervisor import Supervisor
from image_service.app.reload import Configuration
from image_service.core.errors import ConfigurationError
from image_service.server.observability.log import observer, present_level, set_level
from image_service.server.observability.merging import export
from image_service.server.observability.metrics import Metrics
from image_service.server.processes.environment import read_credentials
from image_service.server.processes.process_slot import RELOAD_SECONDS
from image_service.server.snapshots.storage.snapshot import SnapshotEvent
from image_service.settings.base_images import StorageSettings
from image_service.settings.network import ProcessSettings
from image_service.settings.settings import Settings
from tests.pytwisted import async_fixture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.app.processes.serving_process import Assignment
    from image_service.server.processes.process_slot import Handlers

WORKERS = 3


@attrs.define(eq=False)
class FakeProcess:
    """A worker's process, which the test drives; it exits when it is told to stop."""

    handlers: Handlers
    exited: Callable[[str, int | None], None]
    received: list[tuple[str, object]] = attrs.field(factory=list)

    def send(self, word: str, value: object = None) -> None:
        if word != "ping":
            self.received.append((word, value))
        if word == "stop":
            self.exited("stopped", 0)

    def kill(self) -> None:
        self.exited("killed", None)

    def say(self, word: str, value: Any = None) -> None:
        self.handlers[word](value)


@attrs.define
class Supervised:
    """A supervisor and the latest process of each worker."""

    data_dir: Path
    clock: Clock = attrs.field(factory=Clock)
    workers: dict[int, FakeProcess] = attrs.field(factory=dict)
    credentials: dict[str, str] = attrs.field(factory=dict)
    base_urls: list[str] = attrs.field(factory=list)
    supervisor: Supervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = Settings(
            process=ProcessSettings(workers=WORKERS), storage=StorageSettings(data_dir=self.data_dir)
        )
        reactor = cast("EPollReactor", self.clock)
        self.supervisor = Supervisor(reactor, settings, standalone=False, spawn=self._spawn)
        self.supervisor.base_url = BaseUrl(reactor, settings, 8080, standalone=False)
        self.supervisor.startService()

    def _spawn(
        self,
        _: object,
        assignment: Assignment,
        descriptors: Mapping[int, int | str],
        handlers: Handlers,
        exited: Callable[[str, int | None], None],
    ) -> FakeProcess:
        self.base_urls.append(assignment.base_url)
        self.workers[assignment.number] = FakeProcess(handlers, exited)
        self.credentials = read_credentials(os.dup(int(descriptors[CREDENTIALS])))
        return self.workers[assignment.number]

    def result_of(self, deferred: Deferred[list[str]]) -> list[str]:
        assert deferred.called
        found: list[list[str] | Failure] = []
        deferred.addBoth(found.append)
        if isinstance(found[0], Failure):
            found[0].raiseException()
        assert isinstance(found[0], list)
        return found[0]

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
async def supervised(tmp_path: Path) -> AsyncIterator[Supervised]:
    supervised = Supervised(tmp_path)
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
    supervised.workers[2].exited("killed", None)
    assert supervised.received() == [(0, "adopt", 2)]
    supervised.clock.advance(1)
    supervised.serve(2)
    assert supervised.received() == [(0, "release", 2)]


def test_substitute_that_exits_is_substituted_too(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    supervised.workers[2].exited("killed", None)
    supervised.received()
    supervised.workers[0].exited("killed", None)
    assert supervised.received() == [(1, "adopt", 0), (1, "adopt", 2)]


def test_worker_that_starts_later_has_the_present_log_level(supervised: Supervised) -> None:
    level_filter = observer(StringIO(), {"LOGLEVEL": "info"})
    set_level("debug")
    supervised.serve(0, 1, 2)
    supervised.workers[2].exited("killed", None)
    supervised.clock.advance(1)
    assert present_level() == "debug"
    assert supervised.workers[2].received[0] == ("log_level", "debug")
    del level_filter  # its level is this process's while it lives


def test_worker_that_starts_later_has_the_present_base_url(supervised: Supervised) -> None:
    first = supervised.supervisor.base_url.url
    supervised.serve(0, 1, 2)
    supervised.supervisor.base_url.url = "http://192.0.2.7:8080"
    supervised.workers[2].exited("killed", None)
    supervised.clock.advance(1)
    assert supervised.base_urls == [first] * 3 + ["http://192.0.2.7:8080"]


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

    supervised.workers[2].exited("killed", None)
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


def reload(supervised: Supervised, texts: dict[str, str]) -> Deferred[list[str]]:
    configuration = Configuration(Settings(), texts)
    return Deferred.fromCoroutine(supervised.supervisor.reload(configuration))


def test_reload_is_over_when_each_worker_has_responded_or_exited(supervised: Supervised) -> None:
    supervised.serve(0, 1)
    supervised.received()
    texts = {"OS_IMAGES": "[]"}
    reloaded = reload(supervised, texts)
    assert supervised.received() == [(worker, "reload", texts) for worker in range(WORKERS)]
    supervised.workers[0].say("reloaded", (["/tls.crt"], None))
    supervised.workers[1].exited("killed", None)
    assert not reloaded.called
    supervised.workers[2].say("reloaded", (["/ca.crt", "/tls.crt"], None))  # after its start
    assert supervised.result_of(reloaded) == ["/ca.crt", "/tls.crt"]


def test_reload_does_not_wait_for_a_worker_that_never_responds(supervised: Supervised) -> None:
    supervised.serve(0, 1)
    reloaded = reload(supervised, {})
    for worker in (0, 1):
        supervised.workers[worker].say("reloaded", ([], None))
    supervised.clock.advance(RELOAD_SECONDS)
    assert supervised.result_of(reloaded) == []


def test_worker_that_restarts_after_a_reload_is_given_the_new_texts(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    reloaded = reload(supervised, {"LOGLEVEL": "debug"})
    for worker in range(WORKERS):
        supervised.workers[worker].say("reloaded", ([], None))
    assert reloaded.called
    supervised.workers[1].exited("killed", None)
    supervised.clock.advance(1)
    assert supervised.credentials["LOGLEVEL"] == "debug"


def test_worker_that_cannot_reload_is_logged(supervised: Supervised, messages: list[str]) -> None:
    supervised.workers[2].say("reloaded", ([], "HTTPS_KEY_FILE: no\nHTTPS_CERT_FILE: no"))
    assert messages == [
        (
            "serving process 2 cannot reload, keeping the previous configuration: HTTPS_KEY_FILE: no;"
            " HTTPS_CERT_FILE: no"
        )
    ]


def test_reload_that_one_worker_cannot_apply_has_failed(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    reloaded = reload(supervised, {})
    for worker, fault in enumerate((None, "HTTPS_KEY_FILE: no", None)):
        supervised.workers[worker].say("reloaded", ([], fault))
    with pytest.raises(ConfigurationError, match="serving process 1 cannot use the new one"):
        supervised.result_of(reloaded)


def test_reload_during_the_shutdown_is_refused(supervised: Supervised) -> None:
    supervised.serve(0, 1, 2)
    supervised.supervisor.running = False
    reloaded = reload(supervised, {})
    with pytest.raises(CancelledError):
        supervised.result_of(reloaded)
    supervised.supervisor.running = True
