"""What only one process at a time may do in a directory that several share."""

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
    """Wait until no other process, and no other thread, holds the lock; it ends with its holder.

    Args:
        directory: an existing directory, which need not be writable: it is itself what is locked, so no
            file is left behind.

    Yields:
        the open directory.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
