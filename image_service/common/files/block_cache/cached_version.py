"""A cached version as senders and readers see it: the `Residency` of its base file."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from image_service.common.files.block_cache.fetcher import Fetcher, wait_for
from image_service.common.files.block_cache.read_ahead import ReadAhead
from image_service.common.files.block_cache.source import GRANULE_BYTES
from image_service.common.files.block_cache.version_files import AHEAD, HOLD, PRESENT, USED
from image_service.common.files.ofd_locks import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from twisted.internet.interfaces import IReactorFromThreads

    from image_service.common.files.block_cache.counters import CacheCounters
    from image_service.common.files.block_cache.fetcher import Flight
    from image_service.common.files.block_cache.version_files import VersionFiles
    from image_service.core.base_file import BaseFile

_SHIFT = GRANULE_BYTES.bit_length() - 1
_POLL_SECONDS = 0.005
_READ_GRANULES = 2  # of the held ones, as far as it is a reader's step; more is fetched as a whole anyway
_STEP = 16  # granules that one thread has fetched at once


class CachedVersion:
    """Knows which bytes of a version are present, and fetches the others.

    Args:
        validator: stands for URL, validator and size.
        files: on disk, which it owns.
        reactor: whose thread runs the senders.
    """

    def __init__(
        self,
        validator: str,
        files: VersionFiles,
        fetcher: Fetcher,
        counters: CacheCounters,
        reactor: IReactorFromThreads,
    ) -> None:
        self.files = files
        self.fetcher = fetcher
        self._validator = validator
        self._present, self._used = files.present, files.used
        self._counters = counters
        self._reactor = reactor
        self._read_ahead = ReadAhead(files.granules)
        self._read_ahead_lock = threading.Lock()

    def validator(self, file: BaseFile) -> str:
        """Return a digest of URL, validator and size: the same on all replicas."""
        del file
        return self._validator

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """Return how many of the bytes are present until the reactor turns (see `Residency`)."""
        del file
        count = self._count_present(offset, length)
        self._counters.asked_bytes += count
        return count

    def is_present(self, file: BaseFile, offset: int, length: int) -> bool:
        """Return True if all bytes are present (see `Residency`); asking does not count as use."""
        del file
        first, stop = offset >> _SHIFT, ((offset + length - 1) >> _SHIFT) + 1
        if stop == first + 1:  # as nearly always
            return self._present[first] == PRESENT
        return bytes(self._present[first:stop]).count(PRESENT) == stop - first

    def _count_present(self, offset: int, length: int) -> int:
        """Return how many of the bytes, counted from `offset`, are present."""
        granule, stop = offset >> _SHIFT, offset + length
        last = (stop - 1) >> _SHIFT
        present, used = self._present, self._used
        if granule == last and used[granule] == USED and present[granule] == PRESENT:
            return length  # most ranges of a mount
        while granule <= last and present[granule] == PRESENT:
            if used[granule] != USED:
                self._begin(granule)
            granule += 1
        return max(0, min(stop, granule << _SHIFT) - offset)

    def _begin(self, granule: int) -> None:
        """A reader comes to a granule."""
        if self._present[granule] == PRESENT:
            self._used[granule] = USED
        with self._read_ahead_lock:
            ahead = self._read_ahead.begin(granule)
        if ahead:
            self.fetcher.fetch(ahead, AHEAD)

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Fetch absent bytes (see `Residency`); it may be evicted again at the next turn.

        Canceling drops the wait; the bytes arrive.
        """
        del file
        granules = granules_of(offset, length)
        flights = self.fetcher.fetch(granules, USED)
        for granule in granules:
            self._begin(granule)
        self._counters.missed_bytes += length
        self._counters.waiting += 1
        try:
            while flights:
                for flight in flights:
                    await self._arrival(flight)
                flights = self.fetcher.fetch(granules, USED)  # those that are absent, still or again
        finally:
            self._counters.waiting -= 1

    def _arrival(self, flight: Flight) -> Deferred[None]:
        arrived: Deferred[None] = Deferred(lambda _: None)

        def fire() -> None:
            if arrived.called:
                return
            error = flight.done.exception()
            if error is None:
                arrived.callback(None)
            else:
                arrived.errback(error)

        flight.done.add_done_callback(lambda _: self._reactor.callFromThread(fire))
        return arrived

    def hold(self, file: BaseFile, offset: int, length: int) -> AbstractContextManager[None]:
        """Fetch the absent bytes, and keep all of the range from eviction within the context. Blocks."""
        del file
        return self._hold(granules_of(offset, length))

    @contextmanager
    def _hold(self, granules: range) -> Iterator[None]:
        while (lock := self.files.lock(HOLD, SHARED, granules.start, len(granules))) is None:
            time.sleep(_POLL_SECONDS)  # a granule is being evicted
        try:
            for granule in granules[:_READ_GRANULES]:
                self._begin(granule)
            self.fetch(granules)
            yield
        finally:
            os.close(lock)

    def fetch(self, granules: range) -> None:
        """Fetch the absent bytes. Blocks.

        Raises:
            OSError: it cannot be fetched.
        """
        for first in range(granules.start, granules.stop, _STEP):
            step = range(first, min(first + _STEP, granules.stop))
            while flights := self.fetcher.fetch(step, USED):
                wait_for(flights)

    def try_hold(self, file: BaseFile, offset: int, length: int) -> Callable[[], None] | None:
        """Keep bytes from eviction until the returned function is called, if all are present.

        Does not block. The function may be called in any thread, once.
        """
        del file
        granules = granules_of(offset, length)
        lock = self.files.lock(HOLD, SHARED, granules.start, len(granules))
        if lock is None:
            return None
        if self._count_present(offset, length) < length:
            os.close(lock)
            return None
        return partial(os.close, lock)

    def pin(self, granules: range) -> None:
        """Fetch granules and keep them from eviction for good. Blocks."""
        with self._hold(granules):
            for granule in granules:
                self.files.pinned[granule] = 1


def granules_of(offset: int, length: int) -> range:
    """Return the granules that have any of the bytes."""
    return range(offset >> _SHIFT, ((offset + length - 1) >> _SHIFT) + 1)
