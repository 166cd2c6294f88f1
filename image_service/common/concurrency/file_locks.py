"""Locks shared by the processes that use a directory: of the directory itself, and named ones in a file.

They are released when the process ends, and threads of one process exclude each other too. A named lock is
one byte of the file (an open file description lock, fcntl(2)): there is no file per lock to be cleaned up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.common.files.ofd_locks import EXCLUSIVE, SHARED, try_lock
from image_service.common.files.private_files import open_no_follow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption

_POLL_SECONDS = 0.1  # another thread cannot interrupt F_OFD_SETLKW
_PRESENCE = 0  # the byte that every process locks while it runs; names have the others


@contextmanager
def directory_lock(directory: Path) -> Iterator[int]:
    """Wait for the lock of a directory (flock(2)), and yield its descriptor; no file is left behind.

    Raises:
        OSError: there is no such directory, or it cannot be read.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class FileLocks:
    """The locks of one file, which is created when it is first used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def lock(self, name: str, interruption: Interruption) -> Iterator[None]:
        """Wait for the lock of a name, and hold it; the interruption ends the wait from another thread.

        Raises:
            OSError: the file cannot be opened.
            Interrupted: the service stops.
        """
        descriptor = self._open()
        try:
            while not try_lock(descriptor, EXCLUSIVE, _byte(name)):
                interruption.wait(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Hold the lock of a name if it is free; yields False if it is not."""
        descriptor = self._open()
        try:
            yield try_lock(descriptor, EXCLUSIVE, _byte(name))
        finally:
            os.close(descriptor)

    def acquire_exclusive_presence(self) -> int | None:
        """Return a descriptor for ``acquire_presence`` if no other process is present; others wait there."""
        descriptor = self._open()
        if try_lock(descriptor, EXCLUSIVE, _PRESENCE):
            return descriptor
        os.close(descriptor)
        return None

    def acquire_presence(self, exclusive: int | None, interruption: Interruption) -> int:
        """Return a descriptor; until it is closed, this process is present beside others.

        Args:
            exclusive: from ``acquire_exclusive_presence``; waits for another process that has it.
            interruption: ends the wait.
        """
        descriptor = self._open() if exclusive is None else exclusive
        try:
            while not try_lock(descriptor, SHARED, _PRESENCE):
                interruption.wait(_POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open(self) -> int:
        return open_no_follow(self.path, os.O_RDWR | os.O_CREAT, 0o664)


def _byte(name: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
