"""The disk quota: space is reserved before and during a download, so that a full disk is refused, not hit."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SPARE_BYTES = 32 * 1024 * 1024
"""Never filled: sidecars, the manifest and the snapshots need space too."""

_STEP_BYTES = 8 * 1024 * 1024  # written between two checks of the disk


@attrs.frozen
class DiskUsage:
    """The use of a directory and of its file system, in bytes.

    Args:
        free: bytes that this process may still write to it.
        counted: the files in the directory that a quota counts.
        excluded: the files that have a limit of their own.
    """

    size: int
    free: int
    counted: int
    excluded: int


class DiskQuota:
    """The space in one directory, shared by all threads that write large files there.

    Args:
        directory: exists when space is reserved.
        max_bytes: all files together; None: the whole disk.
        reclaim: each removes files that can be spared; those of the first one most easily.
        excluded: prefixes of the names of files that have a limit of their own.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int | None,
        reclaim: Sequence[Callable[[], object]],
        *,
        excluded: tuple[str, ...] = (),
    ) -> None:
        self.max_bytes = max_bytes
        self._directory = directory
        self._excluded = excluded
        self._reclaim = reclaim
        self._lock = threading.Lock()
        self._reserved: dict[str, int] = {}

    @contextmanager
    def reserve(self, name: str) -> Iterator[Callable[[int, int | None], None]]:
        """Reserve space for a file while it is written.

        Yields:
            to be called with the bytes written, and those of the whole file if known; raises ``Unavailable``
            if the rest does not fit beside the bytes that the other files still need.
        """
        checked_at = -_STEP_BYTES

        def check(done: int, total: int | None) -> None:
            nonlocal checked_at
            if done - checked_at < _STEP_BYTES:
                return
            checked_at, needed = done, max(0, (total or done) - done)
            with self._lock:
                self._reserved.pop(name, None)
                others = sum(self._reserved.values())
                for reclaim in self._reclaim:
                    if self.free_bytes() < needed + others:
                        reclaim()
                if self.free_bytes() < needed + others:
                    raise Unavailable(
                        f"not enough disk space: {needed} bytes needed, {others} reserved for other files, "
                        f"{max(0, self.free_bytes())} free in {self._directory}, {self._limits}"
                    )
                self._reserved[name] = needed

        try:
            yield check
        finally:
            with self._lock:
                self._reserved.pop(name, None)

    @property
    def _limits(self) -> str:
        """The amounts that `free_bytes` subtracts, for messages."""
        spare = f"beside {SPARE_BYTES} that are kept free"
        return spare if self.max_bytes is None else f"{spare}, with DATA_DIR_MAX_BYTES={self.max_bytes}"

    def free_bytes(self) -> int:
        """Return how many more bytes may be written; negative if the quota is exceeded."""
        usage = self.measure()
        free = usage.free - SPARE_BYTES
        return free if self.max_bytes is None else min(free, self.max_bytes - usage.counted)

    def measure(self) -> DiskUsage:
        """Return how full the directory is now; blocks while its file system does not respond."""
        status = os.statvfs(self._directory)
        counted = excluded = 0
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith(self._excluded):
                    excluded += _size_of(entry)
                else:
                    counted += _size_of(entry)
        return DiskUsage(
            status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, counted, excluded
        )


def _size_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # renamed meanwhile
        return 0
