"""Memory that the processes of one service share: counters of each worker, and the versions of keys."""

from __future__ import annotations

import mmap
import os

from image_service.concurrency.coordination import SIZE_BYTES as VERSIONS_BYTES

MAX_WORKERS = 64
SLOTS, CONNECTIONS = range(2)
"""Cells of a worker's row: what it holds; no other process writes them while it runs."""
_CELL_BYTES = 8
_ROW_BYTES = 64  # a cache line, so that workers do not write to one another's
_ROWS_BYTES = MAX_WORKERS * _ROW_BYTES
_SIZE_BYTES = _ROWS_BYTES + VERSIONS_BYTES


def create() -> int:
    """Create the memory, filled with zeros, and return its descriptor."""
    descriptor = os.memfd_create("image-service")
    os.truncate(descriptor, _SIZE_BYTES)
    return descriptor


class SharedMemory:
    """The memory, mapped.

    Args:
        descriptor: from ``create``, perhaps in another process; may be closed afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        self._bytes = memoryview(mmap.mmap(descriptor, _SIZE_BYTES))

    def row(self, worker: int) -> memoryview[int]:
        """Return the cells of the worker with this number; each is written atomically."""
        start = worker * _ROW_BYTES
        return self._bytes[start : start + _ROW_BYTES].cast("q")

    @property
    def versions(self) -> memoryview:
        """The part for the versions of `SharedMemoryCoordination`."""
        return self._bytes[_ROWS_BYTES:]
