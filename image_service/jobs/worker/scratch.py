"""The scratch directory: space that jobs reserve, and a directory for each, removed at its end."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.files.modes import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.common.concurrency.interruption import Interruption

_PREFIX = "image-service-worker."
_CHECK_SECONDS = 0.5


class JobScratch:
    """A private directory of this process, and the bytes that its jobs may write in it.

    It is locked (flock) while the process lives; those of killed workers are removed.

    Args:
        parent: directory in which it is made; made if it is not there, for this user alone.
        total_bytes: that all jobs together may take; None: the free space now.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path, total_bytes: int | None) -> None:
        make_private_directory(parent)
        parent = parent.resolve()
        _remove_leftovers(parent)
        self.total_bytes = total_bytes or shutil.disk_usage(parent).free
        self._free_bytes = self.total_bytes
        self._waiting = 0
        self._changed = threading.Condition()
        while True:
            self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            # Until it is locked, another worker may remove it as a leftover.
            with suppress(FileNotFoundError, BlockingIOError):
                self._lock = _open_locked(self._directory)
                if self._directory.exists():
                    break
                os.close(self._lock)

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """Yield a new directory; it is removed after the block."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self._directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def reserved(self, count: int, interruption: Interruption) -> Iterator[int]:
        """Wait until bytes are free, and reserve them for the block, which gets how many it has.

        A request for more than all of the scratch space gets all of it, which may be too little.
        """
        count = min(count, self.total_bytes)
        with self._changed:
            self._waiting += 1
            try:
                self._wait(lambda: self._free_bytes >= count, interruption)
                self._free_bytes -= count
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield count
        finally:
            with self._changed:
                self._free_bytes += count
                self._changed.notify_all()

    def wait_for_room(self, interruption: Interruption) -> None:
        """Wait while a job waits for bytes: another one would not have space either."""
        with self._changed:
            self._wait(lambda: not self._waiting and self._free_bytes > 0, interruption)

    def _wait(self, is_reached: Callable[[], bool], interruption: Interruption) -> None:
        while not self._changed.wait_for(is_reached, _CHECK_SECONDS):
            interruption.raise_if_interrupted()


def _open_locked(directory: Path) -> int:
    """Return the descriptor of a directory that nobody else has locked; BlockingIOError if somebody has."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_leftovers(parent: Path) -> None:
    """Remove the directories of workers that were killed."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, or another user's
            descriptor = _open_locked(path)
            try:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
