"""What the processes of one service share in memory: what each holds, and the versions of keys."""

from __future__ import annotations

import mmap
import os

from image_service.concurrency.coordination import SIZE_BYTES as VERSIONS_BYTES

MAX_WORKERS = 64
SLOTS, CONNECTIONS = range(2)
"""Cells of a worker's row: numbers that it alone writes while it lives."""
_CELL_BYTES = 8
_ROW_BYTES = 64  # a cache line, so that workers do not write to one another's
_ROWS_BYTES = MAX_WORKERS * _ROW_BYTES
_SIZE_BYTES = _ROWS_BYTES + VERSIONS_BYTES


def create() -> int:
    """Make the memory.

    Returns:
        its descriptor; there is nothing but zeros in it.

    Raises:
        OSError: it cannot be had.
    """
    descriptor = os.memfd_create("image-service")
    os.truncate(descriptor, _SIZE_BYTES)
    return descriptor


class SharedMemory:
    """The memory, as one process sees it.

    Args:
        descriptor: of ``create``, perhaps in another process; may be closed then.
    """

    def __init__(self, descriptor: int) -> None:
        self._bytes = memoryview(mmap.mmap(descriptor, _SIZE_BYTES))

    def row(self, worker: int) -> memoryview[int]:
        """Give the cells of a worker, each of which is written as a whole.

        Args:
            worker: its number.
        """
        start = worker * _ROW_BYTES
        return self._bytes[start : start + _ROW_BYTES].cast("q")

    @property
    def versions(self) -> memoryview:
        """The part for the versions of `SharedMemoryCoordination`."""
        return self._bytes[_ROWS_BYTES:]
