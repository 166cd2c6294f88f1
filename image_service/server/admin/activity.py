"""The activity of clients, in all processes of the service: mounts, and requests that have failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from twisted.logger import Logger

from image_service.common.concurrency.lru import LruCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.server.boot_progress.board import MAX_RECORDS, ProgressBoard
from image_service.server.boot_progress.recording import ReadRecorder
from image_service.server.boot_progress.stages import ReadState, Stage
from image_service.server.observability.last_hour import LastHour
from image_service.server.transport.exchanges.failures import FailureList, RecentFailures

if TYPE_CHECKING:
    from image_service.server.boot_progress.recording import CollectedReads

MAX_LINKS = 1024
"""Whose latest use is known."""
COLLECT_SECONDS = 2.0
"""Interval at which the processes are asked for their records."""


class Collected(TypedDict):
    """The records of a process since the last collection; JSON can represent them."""

    names: dict[str, str]
    reads: list[CollectedReads]
    failures: list[tuple[Any, ...]]
    causes: dict[str, int]
    requests: int
    bytes_sent: int
    link_uses: dict[str, float]


Collect: TypeAlias = Callable[[], Awaitable[Sequence[Collected]]]
"""Returns the records of processes, except for those that send theirs to `Activity.merge` themselves."""


class ProcessActivity:
    """Collects the reads of clients, the names of their infra-envs, and the requests that have failed.

    Args:
        seconds: the clock, the same in all processes.
        record_progress: records how much of each response in progress was sent.
        read_totals: returns how many requests have ended and how many bytes were sent, since the start.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        record_progress: Callable[[], None],
        read_totals: Callable[[], tuple[int, int]],
    ) -> None:
        self.reads = ReadRecorder(seconds)
        self.failures = RecentFailures()
        self._record_progress = record_progress
        self._seconds = seconds
        self._read_totals = read_totals
        self._totals = 0, 0
        self._names: LruCache[str, str] = LruCache(MAX_RECORDS)  # since the last collection
        self._link_uses: LruCache[str, float] = LruCache(MAX_LINKS)  # same

    def record_name(self, infra_env: str, name: str) -> None:
        """Record the name of an infra-env, which assisted-service has sent."""
        self._names[infra_env] = name

    def record_link_use(self, link_id: str) -> None:
        """Record that a short link is used now."""
        self._link_uses[link_id] = self._seconds()

    def collect(self) -> Collected:
        """Return the records since the last collection."""
        self._record_progress()
        names, self._names = dict(self._names.items()), LruCache(MAX_RECORDS)
        uses, self._link_uses = dict(self._link_uses.items()), LruCache(MAX_LINKS)
        (requests, sent), before = self._read_totals(), self._totals
        self._totals = requests, sent
        return {
            "names": names,
            "reads": self.reads.collect(),
            "failures": self.failures.collect(),
            "causes": self.failures.collect_counts(),
            "requests": requests - before[0],
            "bytes_sent": sent - before[1],
            "link_uses": uses,
        }

    async def collect_own(self) -> Sequence[Collected]:
        """Return the same for a service of this one process (see `Collect`)."""
        return (self.collect(),)


class Activity:
    """Mounts and failures, and the log of mounts.

    Args:
        stall_seconds: after so long without a read a mount is quiet.
        seconds: the clock of all processes.
        collect: asks them for their records.
        ended: is called with each mount that is logged.
    """

    _log = Logger()

    def __init__(
        self,
        stall_seconds: float,
        seconds: Callable[[], float],
        collect: Collect,
        ended: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self.progress = ProgressBoard(stall_seconds, seconds, self._log_progress)
        self.failures = FailureList()
        self.last_hour = LastHour()
        self.link_uses: LruCache[str, float] = LruCache(MAX_LINKS)
        """By identifier, the latest use since the start, in the clock's seconds."""
        self.seconds = seconds
        self._collect = collect
        self._ended = ended
        self._collecting: SingleFlight[str, None] = SingleFlight()

    async def refresh(self) -> None:
        """Collect the records of all processes until now."""

        async def collect() -> None:
            for collected in await self._collect():
                self.merge(collected)

        await self._collecting.join("activity", collect)

    def merge(self, collected: Collected) -> None:
        """Add the records of a process."""
        self.progress.name_infra_envs(collected["names"])
        self.progress.merge(collected["reads"])
        self.failures.merge(collected["failures"], collected["causes"])
        self.last_hour.add(self.seconds(), collected["requests"], collected["bytes_sent"])
        for link_id, used_at in collected["link_uses"].items():
            self.link_uses[link_id] = max(used_at, self.link_uses.get(link_id) or used_at)

    async def check(self) -> None:
        """Collect, and log the mounts that have become quiet."""
        await self.refresh()
        self.progress.check()
        self.last_hour.observe_machines(self.seconds(), self.progress.count_machines())

    def _log_progress(self, mount: dict[str, Any], sent: int, seconds: float) -> None:
        """Log a mount that has become quiet."""
        self._ended(mount)
        image = " ".join(filter(None, (mount["infra_env"], mount["kind"])))
        is_reading = mount["state"] == ReadState.READING.value  # the service stops
        stage, percent = mount["stage"], mount["rootfs_percent"]
        if stage is None:
            stage = f"{percent} % read"
        elif stage == Stage.ROOTFS.value and percent is not None:
            stage = f"{stage} {percent} %"
        self._log.info(
            "mount of {image} {version} by {address} ({client}) {result}: {stage},"
            " {sent} bytes in {seconds:.0f} s",
            image=image,
            result="ended" if is_reading else mount["state"],
            stage=stage,
            sent=sent,
            seconds=seconds,
            version=mount["version"],
            address=mount["address"],
            client=mount["client"] or "unknown client",
        )
