"""How full the disk is, as the metrics page shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from image_service.app.gauges import KNOWN_SECONDS, DiskSampler
from image_service.common.files.disk_quota import DiskUsage

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

FULL = DiskUsage(size=100, free=0, counted=60, excluded=40)


class Disk:
    """Measurements in a thread: each ends when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.measuring: list[Deferred[DiskUsage]] = []
        self.sampler = DiskSampler(lambda: FULL, self.in_thread, self.clock)

    def in_thread(self, _: Callable[[], T]) -> Deferred[T]:
        self.measuring.append(Deferred())
        return cast("Deferred[T]", self.measuring[-1])

    def sample(self, result: DiskUsage | Exception) -> None:
        Deferred.fromCoroutine(self.sampler.sample())
        if isinstance(result, Exception):
            self.measuring[-1].errback(result)
        else:
            self.measuring[-1].callback(result)

    @property
    def free(self) -> int | None:
        return self.sampler.get(lambda usage: usage.free)


def test_usage_is_unknown_before_it_is_measured() -> None:
    disk = Disk()
    assert disk.free is None
    disk.sample(FULL)
    assert disk.free == 0


def test_usage_is_unknown_once_the_file_system_hangs() -> None:
    disk = Disk()
    disk.sample(FULL)
    Deferred.fromCoroutine(disk.sampler.sample())  # does not end
    disk.clock.advance(KNOWN_SECONDS)
    assert disk.free == 0
    disk.clock.advance(1)
    assert disk.free is None


def test_disk_that_cannot_be_measured_is_logged_once() -> None:
    disk = Disk()
    disk.sample(FULL)
    with capturedLogs() as events:
        for _ in range(3):
            disk.sample(FileNotFoundError(2, "No such file or directory", "/data"))
            assert disk.free is None
        disk.sample(FULL)
    (line,) = map(formatEvent, events)
    assert line == "cannot measure the data directory: /data: No such file or directory"
    assert disk.free == 0
