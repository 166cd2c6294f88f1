"""The progress of all boots: merges the records of the processes, and describes them.

A client that reads an image has a record, which the API lists as a mount. It begins with the first byte, is
quiet when nothing was read for `stall_seconds`, and is forgotten `KEEP_SECONDS` after its last read. A client
that begins again, after the firmware has opened the medium again or after a pause, has a new record.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.core.images.reference import ISOS
from image_service.server.boot_progress.clients import DOCTOR, MACHINES, TOOLS
from image_service.server.boot_progress.coverage import Coverage
from image_service.server.boot_progress.recording import BEGINNING, HEAD, RETURNED, SMALL, ReadKey
from image_service.server.boot_progress.stages import ORDER, READ_AS_FILE, ReadState, Stage, Touch, Touches
from image_service.server.http.dates import format_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from image_service.server.boot_progress.recording import CollectedReads

MAX_RECORDS = 16384
"""That are kept, of 7 KB each, 1.4 of them for events; beyond it, the longest quiet ones are forgotten."""
KEEP_SECONDS = 3600.0
RATE_SECONDS = 10.0
"""The rate is the mean of these seconds."""
INTERVAL_SECONDS = 15
INTERVALS = 20
"""Of `INTERVAL_SECONDS`, whose bytes are kept to show how the rate has changed."""
_RESTART_PAUSES = 10  # times stall_seconds: after such a pause a read of the beginning begins a new record
_IN_ORDER_BYTES = 1024 * 1024
_BEYOND_FIRMWARE = {Touch.KERNEL, Touch.INITRD, Touch.IGNITION, Touch.ROOTFS}
_ISO_KINDS = frozenset(kind.value for kind in ISOS)
_PERCENT = 100


@attrs.define(eq=False)
class BootProgress:
    """The reads of a client of an image, in all processes.

    Times are the clock's seconds.

    Args:
        key: client and image.
        coverage: of the bytes that were read.
        rootfs: where the root file system begins and ends, if the image has one.
        last_stage: after which a boot may need no further byte.
        previous: the image of another infra-env that its address read last before; None: none is known.
        since: first read.
        last_read: the latest.
        client: name, if it is known.
        user_agent: as sent last.
        marks: kinds of its requests.
        touches: parts of an ISO that were requested.
        sent: bytes, repeated ones included.
        reached: last stage so far; None: it does not boot from the image as a medium.
        reached_at: when that was.
        samples: times, and bytes sent until then, of the last `RATE_SECONDS`.
        intervals: numbers of the latest in which something was sent, and its bytes.
        reported: its stage, its state, and bytes sent, when it was reported last.
        shown: its state at the latest check, and True if it had a rate then.
        is_reopened: a client has asked for the header fields, as firmware does when it opens a medium.
        asks_often: it has done so while it read, as some file systems over HTTP do.
        revision: number of its latest change, among those of all records.
        described: its description after that change, for all streams of events; None: none was sent yet.
    """

    key: ReadKey
    coverage: Coverage
    rootfs: tuple[int, int] | None
    last_stage: Stage
    since: float
    last_read: float
    previous: ReadKey | None = None
    client: str | None = None
    user_agent: str = ""
    marks: int = 0
    touches: Touches = attrs.field(factory=Touches)
    sent: int = 0
    reached: Stage | None = None
    reached_at: float = 0.0
    samples: deque[tuple[float, int]] = attrs.field(factory=deque)
    intervals: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=INTERVALS + 1))
    reported: tuple[Stage | None, ReadState, int] | None = None
    shown: tuple[ReadState, bool] = (ReadState.READING, False)
    is_reopened: bool = False
    asks_often: bool = False
    revision: int = 0
    described: dict[str, Any] | None = None

    @property
    def may_boot(self) -> bool:
        """True if the client may be a machine that boots from the image as a medium."""
        return self.key.kind in _ISO_KINDS and self.client != DOCTOR

    @property
    def boots(self) -> bool:
        """True if a machine has begun to boot from the image."""
        return self.reached not in {None, Stage.PROBED} or self.client in MACHINES

    @property
    def is_complete(self) -> bool:
        """True if every byte was read."""
        return self.coverage.count() == self.coverage.size

    @property
    def percent(self) -> float | None:
        """How much of the root file system was read, or of a file that is read as a whole; None: neither."""
        if self.reached is None:
            part, whole = self.coverage.count(), self.coverage.size
        elif self.rootfs is not None:
            part, whole = self.coverage.count(*self.rootfs), self.rootfs[1] - self.rootfs[0]
        else:
            return None
        return round(_PERCENT * part / whole, 1)

    def merge(self, reads: CollectedReads) -> None:
        """Add the records of a process."""
        marks = reads["marks"]
        if marks & BEGINNING:
            self.is_reopened = False
        elif marks & HEAD:
            self.asks_often = True
        self.marks |= marks
        self.touches.merge(reads["touches"])
        self.coverage.merge(b64decode(reads["bitmap"]))
        self.sent += reads["sent"]
        self.since = min(self.since, reads["first_read"])
        self.last_read = max(self.last_read, reads["last_read"])
        self.client = reads["client"] if reads["user_agent"] else reads["client"] or self.client
        self.user_agent = reads["user_agent"] or self.user_agent
        self._advance()

    def _advance(self) -> None:
        """Set the stage, which never goes back."""
        if not self.may_boot or self._is_read_as_file:
            self.reached = None
            return
        stage = self.touches.stage
        if self.reached is None or ORDER[stage] > ORDER[self.reached]:
            self.reached, self.reached_at = stage, self.last_read

    @property
    def _is_read_as_file(self) -> bool:
        """True if the client reads all of it, in order or in large parts, as a download does."""
        if not self.marks & SMALL:
            return self.sent > 0
        if self.marks & RETURNED or not self.coverage.is_prefix:
            return False
        return not _BEYOND_FIRMWARE.isdisjoint(self.touches.first) or self.coverage.count() > _IN_ORDER_BYTES

    def is_begun_again(self, reads: CollectedReads, stall_seconds: float) -> bool:
        """Return True if the records of a process begin a new record of the same client."""
        if not reads["marks"] & BEGINNING:
            return False
        pause: float = reads["first_read"] - self.last_read
        if self.reached is None:
            return self.is_complete or pause > stall_seconds
        is_reopened = (self.is_reopened or reads["marks"] & HEAD) and not self.asks_often
        if is_reopened and ORDER[self.reached] >= ORDER[Stage.KERNEL]:
            return True
        is_stalled = self.state(reads["first_read"], stall_seconds) is ReadState.STALLED
        limit = stall_seconds if is_stalled else 0.0
        return pause > (limit or _RESTART_PAUSES * stall_seconds)

    def sample(self, now: float) -> None:
        """Record, for the rate, the bytes that were sent until now."""
        before = self.samples[-1][1] if self.samples else 0
        if not self.samples or before != self.sent:
            self.samples.append((now, self.sent))
            self._add_to_interval(int(now // INTERVAL_SECONDS), self.sent - before)
        while len(self.samples) > 1 and self.samples[1][0] < now - RATE_SECONDS:
            self.samples.popleft()

    def _add_to_interval(self, number: int, sent: int) -> None:
        if self.intervals and self.intervals[-1][0] == number:
            sent += self.intervals.pop()[1]
        self.intervals.append((number, sent))

    def rates(self, now: float) -> list[int]:
        """Return the bytes per second of each of the last `INTERVALS` that have ended, the oldest first."""
        sent, present = dict(self.intervals), int(now // INTERVAL_SECONDS)
        return [sent.get(each, 0) // INTERVAL_SECONDS for each in range(present - INTERVALS, present)]

    def rate(self, now: float) -> float:
        """Return the bytes per second of the last `RATE_SECONDS`."""
        begin = max(now - RATE_SECONDS, self.since)
        earlier = [sent for at, sent in self.samples if at <= begin]
        before = earlier[-1] if earlier else 0
        return (self.sent - before) / max(now - begin, 1.0) if self.last_read >= begin else 0.0

    def state(self, now: float, stall_seconds: float) -> ReadState:
        """Return what is known at a time."""
        is_quiet = now - self.last_read > stall_seconds
        if self.reached is None and self.is_complete:
            return ReadState.DONE
        if not is_quiet:
            return ReadState.READING
        if self.reached is not None:
            return ReadState.STALLED if ORDER[self.reached] < ORDER[self.last_stage] else ReadState.QUIET
        return ReadState.STALLED if self.may_boot and self.client not in TOOLS else ReadState.ABORTED


class ProgressBoard:
    """The boot progress of all clients, in all processes.

    Args:
        stall_seconds: after so long without a read a record is quiet.
        seconds: the clock, the same as of the processes that record.
        ended: is called with the description of a record, bytes sent and seconds, when it has become quiet;
            again only if its verdict has changed.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        stall_seconds: float,
        seconds: Callable[[], float],
        ended: Callable[[dict[str, Any], int, float], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._seconds = seconds
        self._ended = ended
        self._wall_clock = wall_clock
        self._records: OrderedDict[ReadKey, BootProgress] = OrderedDict()
        self._begun: dict[str, BootProgress] = {}  # the latest of each address, of an infra-env's image
        self._names: LruCache[str, str] = LruCache(MAX_RECORDS)  # of infra-envs
        self.revision = 0
        """Number of the latest change."""

    def name_infra_envs(self, names: Mapping[str, str]) -> None:
        """Set the names of infra-envs."""
        changed = {each for each, name in names.items() if self._names.get(each) != name}
        for infra_env in changed:
            self._names[infra_env] = names[infra_env]
        if changed:
            for record in self._records.values():
                if record.key.infra_env in changed:
                    self._change(record)

    def merge(self, collected: Iterable[CollectedReads]) -> None:
        """Add the records of a process."""
        now = self._seconds()
        for reads in collected:
            key, size = ReadKey(*reads["key"]), reads["size"]
            record = self._records.get(key)
            if record is not None and not reads["sent"]:  # the header fields alone
                record.is_reopened = True
                continue
            if record is not None and (
                record.coverage.size != size or record.is_begun_again(reads, self._stall_seconds)
            ):
                self._report(self._records.pop(key), now)
                record = None
            if record is None:
                rootfs = None if reads["rootfs"] is None else tuple(reads["rootfs"])
                last_stage = Stage(reads["last_stage"])
                first_read, last_read = reads["first_read"], reads["last_read"]
                record = BootProgress(key, Coverage(size), rootfs, last_stage, first_read, last_read)
                self._records[key] = record
                self._find_previous(record)
            record.merge(reads)
            record.sample(now)
            self._change(record)
            self._records.move_to_end(key)
        while len(self._records) > MAX_RECORDS:
            oldest = next(iter(self._records.values()))
            self._report(oldest, now)
            self._forget(oldest)

    def _find_previous(self, record: BootProgress) -> None:
        key = record.key
        if key.infra_env is None:
            return
        if (latest := self._begun.get(key.address)) is not None:
            is_other = latest.key.infra_env != key.infra_env
            record.previous = latest.key if is_other else latest.previous
        self._begun[key.address] = record

    def _forget(self, record: BootProgress) -> None:
        del self._records[record.key]
        if self._begun.get(record.key.address) is record:
            del self._begun[record.key.address]

    def check(self) -> None:
        """Report the records that have become quiet, and forget those that have been for long."""
        now = self._seconds()
        for record in list(self._records.values()):
            pause = now - record.last_read
            shown = record.state(now, self._stall_seconds), record.rate(now) > 0
            if shown != record.shown:
                record.shown = shown
                self._change(record)
            if pause > self._stall_seconds:
                self._report(record, now)
            if pause > KEEP_SECONDS:
                self._forget(record)

    def close(self) -> None:
        """Report the records that were not reported: the service stops."""
        for record in self._records.values():
            self._report(record, self._seconds())

    def _report(self, record: BootProgress, now: float) -> None:
        """Report a record, unless it was reported with the same result."""
        result = record.reached, record.state(now, self._stall_seconds), record.sent
        if result != record.reported:
            record.reported = result
            self._ended(self._describe(record, now), record.sent, record.last_read - record.since)

    def _change(self, record: BootProgress) -> None:
        self.revision += 1
        record.revision = self.revision
        record.described = None

    def describe_all(self, offset: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the descriptions, the latest first; at most `limit` after the first `offset`."""
        now, stop = self._seconds(), None if limit is None else offset + limit
        records = islice(reversed(self._records.values()), offset, stop)
        return [self._describe(record, now) for record in records]

    def changes(self, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the descriptions that have changed after a revision, by their own, in order."""
        now = self._seconds()
        changed = [record for record in self._records.values() if record.revision > after]
        for record in sorted(changed, key=lambda record: record.revision):
            if record.described is None:
                record.described = self._describe(record, now)
            yield record.revision, record.described

    def stages(self) -> list[str]:
        """Return the stage of each record that is not quiet, or `READ_AS_FILE`."""
        return [READ_AS_FILE if record.reached is None else record.reached.value for record in self._active()]

    def count_machines(self) -> int:
        """Return how many addresses read an image now."""
        return len({each.key.address for each in self._active() if each.client != DOCTOR})

    def count_moved(self) -> int:
        """Return how many machines boot from an image of another infra-env than they read before."""
        return sum(each.boots and self._previous_infra_env(each) is not None for each in self._active())

    def _active(self) -> Iterator[BootProgress]:
        now = self._seconds()
        return (each for each in self._records.values() if now - each.last_read <= self._stall_seconds)

    def _previous_infra_env(self, record: BootProgress) -> str | None:
        """Return the infra-env whose image the address read before; None too if it reads that one again.

        An address that goes on to read both stands for several machines, as that of a NAT does.
        """
        if record.previous is None:
            return None
        other = self._records.get(record.previous)
        reads_both = other is not None and other.last_read > record.since
        return None if reads_both else record.previous.infra_env

    def _describe(self, record: BootProgress, now: float) -> dict[str, Any]:
        state, epoch = record.state(now, self._stall_seconds), self._wall_clock() - now
        return {
            "infra_env": record.key.infra_env,
            "infra_env_name": self._names.peek(record.key.infra_env or "") or None,
            "previous_infra_env": self._previous_infra_env(record),
            "version": record.key.version,
            "cpu_architecture": record.key.architecture,
            "kind": record.key.kind,
            "address": record.key.address,
            "client": record.client,
            "user_agent": record.user_agent,
            "since": format_epoch(epoch + record.since),
            "last_read": format_epoch(epoch + record.last_read),
            "bytes_read": record.coverage.count(),
            "size": record.coverage.size,
            "rate": round(record.rate(now)),
            "rates": record.rates(now),
            "stage": None if record.reached is None else record.reached.value,
            "stage_since": None if record.reached is None else format_epoch(epoch + record.reached_at),
            "last_stage": record.last_stage.value,
            "state": state.value,
            "rootfs_percent": record.percent,
            "stalled": state is ReadState.STALLED,
        }
