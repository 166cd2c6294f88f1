"""Fetches granules of one version: in spans, each once, in a few threads.

    queued ── claimed ── fetched into memory ── space reserved ── checked ── written ── waiters go on

Queues are those of this process, claims exclude other processes.

At most `THREADS` spans of `MAX_SPAN` granules are in memory at once. Granules with readers go first; two
threads are for them alone.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING
from zlib import crc32

import attrs

from image_service.common.files.block_cache.read_ahead import MAX_SPAN
from image_service.common.files.block_cache.source import GRANULE_BYTES, DigestMismatch, OriginChanged
from image_service.common.files.block_cache.version_files import (
    ABSENT,
    AHEAD,
    CLAIM,
    EVICTED,
    PRESENT,
    UNVERIFIED,
    USED,
    WRITE,
)
from image_service.common.files.ofd_locks import EXCLUSIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.common.files.block_cache.budget import Budget
    from image_service.common.files.block_cache.counters import CacheCounters
    from image_service.common.files.block_cache.source import GranuleCheck, RangeSource
    from image_service.common.files.block_cache.version_files import VersionFiles

THREADS = 8
_AHEAD_THREADS = 6
_LINGER_SECONDS = 10.0  # a thread that has nothing to do ends, so that nothing keeps an unused version open
CLAIM_SECONDS = 0.5
"""How long a process waits for another one's fetch, before it fetches the same."""
_POLL_SECONDS = 0.005
_WRITE_SECONDS = 30.0  # another process may write or evict a granule that long


@attrs.define(eq=False)
class Flight:
    """Consecutive granules that are fetched together.

    Args:
        used: the state that they get: USED, or AHEAD of any reader.
        done: set when the granules should be looked at again; fails if they could not be fetched.
        started: in a thread.
        started_ahead: in one of the threads that fetch ahead.
    """

    first: int
    count: int
    used: int
    done: Future[None] = attrs.field(factory=Future)
    started: bool = False
    started_ahead: bool = False

    @property
    def granules(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)


class Fetcher:
    """Fetches absent granules.

    Args:
        check: of its granules, if there is one.
    """

    def __init__(
        self,
        files: VersionFiles,
        source: RangeSource,
        check: GranuleCheck | None,
        budget: Budget,
        counters: CacheCounters,
    ) -> None:
        self._files = files
        self._source = source
        self._check = check
        self._budget = budget
        self._counters = counters
        self._changed = threading.Condition()
        self._flights: dict[int, Flight] = {}
        self._demanded: deque[Flight] = deque()
        self._ahead: deque[Flight] = deque()
        self._threads = self._idle = self._running_ahead = 0
        self._stopped = self._closed = False

    def fetch(self, granules: Iterable[int], used: int) -> list[Flight]:
        """Have the absent granules fetched (ascending numbers); return the flights to wait for."""
        wanted: dict[Flight, None] = {}
        with self._changed:
            if self._stopped and used == USED:
                raise OSError(errno.ESHUTDOWN, "the block cache is closed")
            if self._stopped:
                return []
            for granule in granules:
                if self._files.present[granule] == PRESENT:
                    continue
                flight = self._flights.get(granule)
                if flight is None:
                    flight = self._queue(granule, used, next(reversed(wanted), None))
                elif used == USED:
                    self._hurry(flight)
                wanted[flight] = None
            self._start_threads()
            if wanted and used == USED and not self._threads:
                raise OSError(errno.EBUSY, "the block cache can start no thread")
        return list(wanted)

    def _queue(self, granule: int, used: int, latest: Flight | None) -> Flight:
        if (
            latest is not None
            and latest.granules.stop == granule
            and (latest.used, latest.started) == (used, False)
            and latest.count < MAX_SPAN
        ):
            latest.count += 1
            self._flights[granule] = latest
            return latest
        flight = self._flights[granule] = Flight(granule, 1, used)
        (self._demanded if used == USED else self._ahead).append(flight)
        return flight

    def _hurry(self, flight: Flight) -> None:
        """Fetch queued read-ahead at once, because a reader waits for it."""
        if flight.used == AHEAD and not flight.started:
            self._ahead.remove(flight)
            flight.used = USED
            self._demanded.append(flight)

    def _start_threads(self) -> None:
        waiting = len(self._demanded) + min(len(self._ahead), _AHEAD_THREADS - self._running_ahead)
        for _ in range(min(waiting - self._idle, THREADS - self._threads)):
            try:
                threading.Thread(target=self._run, name="block-cache", daemon=True).start()
            except RuntimeError:  # the process, or its container, has too many
                break
            self._threads += 1
        self._changed.notify_all()

    def close(self) -> None:
        """Begin no more fetches; close the files once those in flight have ended. Does not block."""
        with self._changed:
            self._stopped = True
            flights = [*self._demanded, *self._ahead]
            self._demanded.clear()
            self._ahead.clear()
            self._changed.notify_all()
        for flight in flights:
            self._end(flight, OSError(errno.ESHUTDOWN, "the block cache is closed"))
        with self._changed:
            self._close_files()

    def _close_files(self) -> None:
        if self._stopped and not self._threads and not self._closed:
            self._closed = True
            self._files.close()

    def wait_until_closed(self, seconds: float) -> None:
        """Wait for the fetches in flight."""
        with self._changed:
            self._changed.wait_for(lambda: not self._threads, seconds)

    def _run(self) -> None:
        while (flight := self._next()) is not None:
            error: BaseException | None = None
            self._counters.in_flight_bytes += flight.count * GRANULE_BYTES
            try:
                self._fetch_claimed(flight)
            except BaseException as caught:  # noqa: BLE001 - given to the waiters
                error = caught
            self._counters.in_flight_bytes -= flight.count * GRANULE_BYTES
            with self._changed:
                self._running_ahead -= flight.started_ahead
            self._end(flight, error)

    def _next(self) -> Flight | None:
        """Wait for a flight; None: this thread ends."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(self._has_next, _LINGER_SECONDS)
            self._idle -= 1
            if self._stopped or not self._has_next():
                self._threads -= 1
                self._close_files()
                self._changed.notify_all()
                return None
            if self._demanded:
                flight = self._demanded.popleft()
            else:
                flight = self._ahead.popleft()
                flight.started_ahead = True
                self._running_ahead += 1
            flight.started = True
            return flight

    def _has_next(self) -> bool:
        return (
            self._stopped
            or bool(self._demanded)
            or bool(self._ahead and self._running_ahead < _AHEAD_THREADS)
        )

    def _end(self, flight: Flight, error: BaseException | None) -> None:
        with self._changed:
            for granule in flight.granules:
                self._flights.pop(granule, None)
        if error is None:
            flight.done.set_result(None)
        else:
            flight.done.set_exception(error)

    def _fetch_claimed(self, flight: Flight) -> None:
        """Fetch absent granules, unless another process does so."""
        files, first = self._files, flight.first
        claim = files.lock(CLAIM, EXCLUSIVE, first, flight.count)
        granules = flight.granules
        if claim is None:  # of the first one alone: whoever waits for the others asks again
            granules = range(first, first + 1)
            deadline = time.monotonic() + CLAIM_SECONDS
            while claim is None and files.present[first] != PRESENT and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                claim = files.lock(CLAIM, EXCLUSIVE, first)
        try:
            self._verify(granules)
            start = None
            for granule in (*granules, granules.stop):
                is_absent = granule in granules and files.present[granule] != PRESENT
                if is_absent and start is None:
                    start = granule
                elif not is_absent and start is not None:
                    self._fetch_span(start, granule, flight.used)
                    start = None
        finally:
            if claim is not None:
                os.close(claim)

    def _verify(self, granules: range) -> None:
        """Compare the granules of the machine's previous boot with their checksums."""
        files = self._files
        if any(files.present[granule] == UNVERIFIED for granule in granules):
            lock = self._lock_for_writing(granules.start, len(granules))
            try:
                for granule in granules:
                    if files.present[granule] == UNVERIFIED:
                        self._compare(granule)
            finally:
                os.close(lock)

    def compare(self, granule: int) -> bool:
        """Return False if a granule was on disk and wrong; it is absent now. Blocks for the disk."""
        if self._files.present[granule] == ABSENT:
            return True
        lock = self._lock_for_writing(granule, 1)
        try:
            return self._compare(granule)
        finally:
            os.close(lock)

    def _compare(self, granule: int) -> bool:
        """Compare a granule on disk; one that a crash has damaged is absent, not wrong."""
        files = self._files
        files.verify(granule)
        if self._check is None or files.present[granule] == ABSENT:
            return True
        try:
            self._check.check(granule, memoryview(files.read(granule)))
        except DigestMismatch:
            files.present[granule] = ABSENT
            self._counters.failed_fetches += 1  # of which nobody knew
            self._counters.digest_faults += 1
            return False
        return True

    def _fetch_span(self, start: int, stop: int, used: int) -> None:
        """Fetch absent granules from `start` up to `stop`, and write them."""
        files, counters, began = self._files, self._counters, time.monotonic()
        length = min(stop * GRANULE_BYTES, files.size) - start * GRANULE_BYTES
        content = memoryview(bytearray(length))
        try:
            self._source.fetch(start * GRANULE_BYTES, content)
        except OSError as error:
            counters.failed_fetches += 1
            counters.changed_origins += isinstance(error, OriginChanged)
            raise
        seconds = time.monotonic() - began
        pieces = [content[at : at + GRANULE_BYTES] for at in range(0, length, GRANULE_BYTES)]
        try:
            self._write(start, pieces, used)
        except DigestMismatch:
            counters.failed_fetches += 1
            counters.digest_faults += 1
            raise
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._budget.evict(length, disk_is_full=True)
            self._write(start, pieces, used)
        counters.fetches += 1
        counters.fetched_bytes += length
        counters.fetch_seconds += seconds

    def _write(self, start: int, pieces: list[memoryview], used: int) -> None:
        """Check granules and write them, or none of them.

        They are checked under the lock: what is fetched when digests become known is checked here, or found
        by who compares what is on disk.
        """
        files = self._files
        with self._budget.reserve(sum(map(len, pieces))):
            lock = self._lock_for_writing(start, len(pieces))
            try:
                if self._check is not None:
                    for granule, piece in enumerate(pieces, start):
                        self._check.check(granule, piece)
                for granule, piece in enumerate(pieces, start):
                    if files.present[granule] != PRESENT:  # else another process was faster
                        self._counters.refetched_granules += files.used[granule] == EVICTED
                        files.write(granule, piece, crc32(piece), used)
            finally:
                os.close(lock)

    def _lock_for_writing(self, first: int, count: int) -> int:
        deadline = time.monotonic() + _WRITE_SECONDS
        while (lock := self._files.lock(WRITE, EXCLUSIVE, first, count)) is None:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "another process keeps a granule of the block cache locked")
            time.sleep(_POLL_SECONDS)
        return lock


def wait_for(flights: Iterable[Flight]) -> None:
    """Wait until flights have ended; raise the first failure."""
    for flight in flights:
        flight.done.result()
