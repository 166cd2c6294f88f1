"""A lock on a directory that several processes share."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def directory_lock(directory: Path) -> Iterator[int]:
    """Wait for the lock, which excludes other processes and threads, and yield the open directory.

    The directory itself is locked (flock(2)): no file is left behind, and the lock ends with the process.

    Raises:
        OSError: there is no such directory, or it cannot be read.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
