"""Room for what is fetched: asked for before and during, so that a full disk is told and not run into."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SPARE_BYTES = 32 * 1024 * 1024
"""What is never filled: sidecars, the manifest and the snapshots have to be written somewhere."""

_STEP_BYTES = 8 * 1024 * 1024  # between two looks at the disk


class DiskQuota:
    """The room in one directory, shared by all who write large files there.

    Args:
        directory: where.
        max_bytes: that all its files may take; None: as much as there is.
        relieve: removes what can be done without; tells whether there was anything.
    """

    def __init__(self, directory: Path, max_bytes: int | None, relieve: Callable[[], bool]) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._relieve = relieve
        self._lock = threading.Lock()
        self._missing: dict[str, int] = {}

    @contextmanager
    def reserved(self, image: str) -> Iterator[Callable[[int, int | None], None]]:
        """Keep room for one file while it is written.

        Args:
            image: its name.

        Yields:
            to be told the bytes that are there, and those of the whole if they are known; raises
            ``Unavailable`` where there is no room for the rest, beside the rest of the others.
        """
        looked_at = -_STEP_BYTES

        def check(done: int, total: int | None) -> None:
            nonlocal looked_at
            if done - looked_at >= _STEP_BYTES:
                looked_at = done
                self._check(image, max(0, (total or done) - done))

        try:
            yield check
        finally:
            with self._lock:
                self._missing.pop(image, None)

    def used(self) -> int:
        """Tell how many bytes the files take."""
        with os.scandir(self._directory) as entries:
            return sum(_size(entry) for entry in entries)

    def free(self) -> int:
        """Tell how many bytes more they may take."""
        status = os.statvfs(self._directory)
        free = status.f_bavail * status.f_frsize - SPARE_BYTES
        return free if self._max_bytes is None else min(free, self._max_bytes - self.used())

    def _check(self, image: str, missing: int) -> None:
        with self._lock:
            self._missing.pop(image, None)
            wanted = missing + sum(self._missing.values())
            if self.free() < wanted and not (self._relieve() and self.free() >= wanted):
                raise Unavailable(
                    f"there is no room: {missing} bytes are missing, others wait for {wanted - missing}, "
                    f"{max(0, self.free())} may be written"
                )
            self._missing[image] = missing


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # was renamed meanwhile
        return 0
