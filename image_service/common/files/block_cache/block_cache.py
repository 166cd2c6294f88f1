"""The cache of a process: a directory, a budget and the open versions."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twisted.internet.task import LoopingCall

from image_service.common.files.block_cache.budget import Budget
from image_service.common.files.block_cache.cached_version import CachedVersion, granules_of
from image_service.common.files.block_cache.counters import CacheCounters
from image_service.common.files.block_cache.fetcher import Fetcher
from image_service.common.files.block_cache.shared_state import DIRECTORY, EVICTION, SharedState
from image_service.common.files.block_cache.source import GRANULE_BYTES
from image_service.common.files.block_cache.version_files import (
    DATA,
    VersionFiles,
    avoid_large_folios,
    create_version,
    read_boot_id,
)
from image_service.common.files.local_file import LocalFile
from image_service.common.files.modes import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from image_service.common.files.block_cache.source import CacheIdentity, GranuleCheck, RangeSource
    from image_service.core.base_file import BaseFile

EPOCH_SECONDS = 0.02
"""How often the reactor reports that no sender is about to send bytes that it found present."""
CLOSE_SECONDS = 5.0
"""How long fetches that have begun are waited for at the end."""
MAX_PINNED = 0.5
"""The part of the budget that may be pinned."""


class BlockCache:
    """One directory of cached versions, which several processes of a host may share.

    Args:
        directory: on a local disk; created if it is missing.
        max_bytes: of disk that all versions together may take.
        reactor: whose thread runs the senders; with `callFromThread` and `callLater`.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: Path, max_bytes: int, reactor: Any) -> None:  # noqa: ANN401 - two interfaces
        make_private_directory(directory)
        self.counters = CacheCounters()
        self._directory = directory
        self._reactor = reactor
        self._state = SharedState(directory)
        self._budget = Budget(directory, max_bytes, self._state, self.counters)
        # A version is open as long as a base file refers to it.
        self._versions: WeakValueDictionary[CacheIdentity, CachedVersion] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._epochs = LoopingCall(self._state.pass_epoch)
        self._epochs.clock = reactor

    def start(self) -> None:
        """Let senders begin; called in the reactor's thread."""
        self._epochs.start(EPOCH_SECONDS)

    def end_senders(self) -> None:
        """Report that no sender will ask any more; called in the reactor's thread."""
        if self._epochs.running:
            self._epochs.stop()
        self._state.end_senders()

    def close(self) -> None:
        """End threads and close all files, except the descriptors of base files. Blocks."""
        fetchers = [version.fetcher for version in self._versions.values()]
        for fetcher in fetchers:
            fetcher.close()
        for fetcher in fetchers:
            fetcher.wait_until_closed(CLOSE_SECONDS)
        self._state.close()

    def open(
        self, identity: CacheIdentity, source: RangeSource, check: GranuleCheck | None = None
    ) -> BaseFile:
        """Return the file of a version, whose `residency` fetches absent bytes. Blocks for the disk.

        The caller closes its descriptor (`OpenFiles`). The version is open, with source and check that it was
        first opened with, until nothing refers to the file or a duplicate.

        Raises:
            OSError: the directory cannot be used.
        """
        with self._lock:
            version = self._versions.get(identity)
            if version is None:
                files = self._open_files(identity)
                fetcher = Fetcher(files, source, check, self._budget, self.counters)
                version = CachedVersion(identity.digest, files, fetcher, self.counters, self._reactor)
                self._versions[identity] = version
                weakref.finalize(version, fetcher.close)
        descriptor = os.open(version.files.directory / DATA, os.O_RDONLY | os.O_CLOEXEC)
        avoid_large_folios(descriptor)
        return LocalFile(descriptor, identity.size, str(version.files.directory / DATA), version)

    def _open_files(self, identity: CacheIdentity) -> VersionFiles:
        directory = self._directory / identity.digest
        with self._state.lock(DIRECTORY):
            try:
                files = VersionFiles(directory)
            except (FileNotFoundError, ValueError):
                create_version(directory, identity.size)
                files = VersionFiles(directory)
            files.keep_open()
            files.begin(read_boot_id())
        return files

    def local_bytes(self, identity: CacheIdentity) -> int:
        """Return how many bytes of an open version are present."""
        return self._versions[identity].files.present_bytes()

    def allocated_bytes(self) -> int:
        """Return the bytes that all versions take on disk. Blocks for the disk."""
        return self._budget.allocated_bytes()

    def pin(self, identity: CacheIdentity, offset: int, length: int) -> None:
        """Fetch bytes of an open version and never evict them. Blocks.

        Raises:
            OSError: they cannot be fetched; ENOSPC: more than half of the budget would be pinned.
        """
        granules, version = granules_of(offset, length), self._versions[identity]
        more = sum(not version.files.pinned[granule] for granule in granules)
        if (self._pinned_granules() + more) * GRANULE_BYTES > self._budget.max_bytes * MAX_PINNED:
            raise OSError(errno.ENOSPC, "half of the block cache would be pinned")
        version.pin(granules)

    def _pinned_granules(self) -> int:
        with self._budget.open_versions() as versions:
            return sum(sum(version.pinned) for version in versions)

    def fetch(self, identity: CacheIdentity, offset: int, length: int) -> None:
        """Fetch bytes of an open version, which may be evicted again. Blocks.

        Raises:
            OSError: they cannot be fetched.
        """
        self._versions[identity].fetch(granules_of(offset, length))

    def compare(self, identity: CacheIdentity, interrupt: Callable[[], None]) -> int:
        """Check what is present of an open version, and make wrong granules absent; return how many. Blocks.

        Args:
            interrupt: called for each granule; what it raises ends this.
        """
        fetcher, differing = self._versions[identity].fetcher, 0
        for granule in range(identity.granules):
            interrupt()
            differing += not fetcher.compare(granule)
        return differing

    def remove_others(self, named: Collection[CacheIdentity]) -> None:
        """Remove the directories of versions that are neither named nor open in any process. Blocks."""
        names = {identity.digest for identity in named}
        with self._state.lock(EVICTION), self._state.lock(DIRECTORY):
            for directory in self._budget.directories():
                if directory.name not in names and _is_unused(directory):
                    shutil.rmtree(directory, ignore_errors=True)


def _is_unused(directory: Path) -> bool:
    try:
        files = VersionFiles(directory)
    except (OSError, ValueError):
        return True
    try:
        return files.is_unused()
    finally:
        files.close()
