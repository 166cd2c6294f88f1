"""The budget of a cache directory: disk space is reserved before it is written, and freed by eviction.

Eviction is second chance (the clock algorithm): a hand goes over the granules of all versions, and takes
those that nobody has used since it last came by. A granule that is pinned or held stays.

        clear `present` ── begin an epoch ── every process passes it ── punch
            └──────────── under the granule's WRITE and HOLD locks ─────┘
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.common.files.block_cache.shared_state import BUDGET, DIRECTORY, EVICTION
from image_service.common.files.block_cache.source import GRANULE_BYTES
from image_service.common.files.block_cache.version_files import (
    ABSENT,
    EVICTED,
    HOLD,
    UNUSED,
    WRITE,
    VersionFiles,
)
from image_service.common.files.ofd_locks import EXCLUSIVE, NONE, reopen, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.common.files.block_cache.counters import CacheCounters
    from image_service.common.files.block_cache.shared_state import SharedState

HIGH, LOW = 0.95, 0.90
"""Parts of the budget: eviction begins above the one and ends below the other."""
MAX_BATCH = 128
"""Granules that are evicted at once."""
SPACE_SECONDS = 5.0
"""How long a writer waits for space while all granules are in use."""
PASS_SECONDS = 30.0
"""How long eviction waits for a process whose reactor does not turn."""
_POLL_SECONDS, _WAIT_SECONDS = 0.002, 0.05
_SWEEPS = 4  # fetched ahead, used, unused; and one for granules used meanwhile
_NOT_ABSENT = re.compile(rb"[^\0]")


class Budget:
    """The disk space of one cache directory.

    Args:
        max_bytes: that they may take together.
        state: shared with the other processes.
    """

    def __init__(self, directory: Path, max_bytes: int, state: SharedState, counters: CacheCounters) -> None:
        self.max_bytes = max_bytes
        self._directory = directory
        self._state = state
        self._counters = counters
        self._hand = ("", 0)  # version and granule where the next sweep begins

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Reserve bytes while they are written; evict others before if needed. Blocks.

        Raises:
            OSError: ENOSPC: pinned and held granules leave no space.
        """
        deadline = time.monotonic() + SPACE_SECONDS
        while not self._try_reserve(count):
            if not self.evict(count):
                if time.monotonic() > deadline:
                    raise OSError(errno.ENOSPC, "the block cache is full of granules that are in use")
                time.sleep(_WAIT_SECONDS)
        try:
            yield
        finally:
            with self._state.lock(BUDGET):
                self._state.reserve(-count)

    def _try_reserve(self, count: int) -> bool:
        with self._state.lock(BUDGET):
            if self._used_bytes() + count > self.max_bytes * HIGH:
                return False
            self._state.reserve(count)
            return True

    def _used_bytes(self) -> int:
        """Return the bytes that are taken or reserved. The caller has the lock BUDGET."""
        return self.allocated_bytes() + self._state.reserved_bytes()

    def allocated_bytes(self) -> int:
        """Return the bytes that all versions take on disk."""
        total = 0
        for path in self.directories():
            for name in ("data", "map"):
                try:
                    total += (path / name).stat().st_blocks * 512
                except OSError:  # removed meanwhile
                    continue
        return total

    def directories(self) -> list[Path]:
        """Find the directories of versions."""
        return sorted(path for path in self._directory.iterdir() if path.is_dir())

    def evict(self, count: int, *, disk_is_full: bool = False) -> bool:
        """Evict a batch of granules, unless `count` bytes fit; False if they do not and none can be. Blocks.

        Args:
            count: bytes that are to be written.
            disk_is_full: they do not fit, whatever the budget says.
        """
        with self._state.lock(EVICTION):
            with self._state.lock(BUDGET):
                used = self._used_bytes() + count
            if used <= self.max_bytes * HIGH and not disk_is_full:
                return True
            excess = max(count, used - int(self.max_bytes * LOW))
            with self.open_versions() as versions:
                return self._evict_batch(versions, min(MAX_BATCH, -(-excess // GRANULE_BYTES)))

    @contextmanager
    def open_versions(self) -> Iterator[list[VersionFiles]]:
        """Open all versions; none is removed meanwhile."""
        versions: list[VersionFiles] = []
        with self._state.lock(DIRECTORY):
            for path in self.directories():
                try:
                    versions.append(VersionFiles(path))
                except (OSError, ValueError):  # unfinished
                    continue
                versions[-1].keep_open()
        try:
            yield versions
        finally:
            for version in versions:
                version.close()

    def _evict_batch(self, versions: list[VersionFiles], wanted: int) -> bool:
        """Evict up to so many granules; False if none can be."""
        locks = {version: reopen(version.map) for version in versions}
        try:
            victims = self._lock_strays(versions, locks)
            if not victims:
                victims = self._lock_victims(versions, locks, wanted)
            if victims and self._wait_for_senders():
                self._punch(victims)
                return True
            return False
        finally:
            for descriptor in locks.values():
                os.close(descriptor)

    def _lock_strays(
        self, versions: list[VersionFiles], locks: dict[VersionFiles, int]
    ) -> list[tuple[VersionFiles, int]]:
        """Lock granules that are absent and yet on disk: their writer was killed."""
        return [
            (version, granule)
            for version in versions
            if version.stray_bytes() >= GRANULE_BYTES
            for granule in version.allocated_granules()
            if version.present[granule] == ABSENT
            and _lock(locks[version], granule)
            and version.present[granule] == ABSENT
        ]

    def _lock_victims(
        self, versions: list[VersionFiles], locks: dict[VersionFiles, int], wanted: int
    ) -> list[tuple[VersionFiles, int]]:
        """Move the hand, and lock and clear the granules that it takes."""
        victims: list[tuple[VersionFiles, int]] = []
        for version, granule in self._sweep(versions):
            if version.pinned[granule]:
                continue
            if version.used[granule] != UNUSED:
                version.used[granule] -= 1
                continue
            if version.present[granule] == ABSENT or not _lock(locks[version], granule):
                continue
            if version.pinned[granule]:  # by now
                continue
            version.present[granule] = ABSENT
            version.used[granule] = EVICTED
            victims.append((version, granule))
            if len(victims) == wanted:
                self._hand = (version.directory.name, granule + 1)
                break
        return victims

    def _sweep(self, versions: list[VersionFiles]) -> Iterator[tuple[VersionFiles, int]]:
        """Go over all granules some times, beginning at the hand."""
        name, start = self._hand
        ordered = [version for version in versions if version.directory.name >= name]
        ordered += [version for version in versions if version.directory.name < name]
        if not ordered:
            return
        if ordered[0].directory.name != name:
            start = 0
        for _ in range(_SWEEPS):
            for version in ordered:
                for found in _NOT_ABSENT.finditer(bytes(version.present), start):
                    yield version, found.start()
                start = 0

    def _wait_for_senders(self) -> bool:
        """Wait until nobody is about to send granules that became absent; False if a process hangs."""
        epoch = self._state.begin_epoch()
        deadline = time.monotonic() + PASS_SECONDS
        while not self._state.have_passed(epoch):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _punch(self, victims: list[tuple[VersionFiles, int]]) -> None:
        granules: defaultdict[VersionFiles, list[int]] = defaultdict(list)
        for version, granule in victims:
            granules[version].append(granule)
        for version, numbers in granules.items():
            for first, count in _runs(sorted(numbers)):
                version.punch(first, count)
        self._counters.evicted_granules += len(victims)


def _lock(descriptor: int, granule: int) -> bool:
    """Keep others from writing, holding and pinning a granule until the descriptor is closed."""
    if not try_lock(descriptor, EXCLUSIVE, WRITE + granule):
        return False
    if try_lock(descriptor, EXCLUSIVE, HOLD + granule):
        return True
    try_lock(descriptor, NONE, WRITE + granule)
    return False


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into runs of consecutive ones: first and count."""
    first = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield first, previous + 1 - first
            first = number
        previous = number
    yield first, previous + 1 - first
