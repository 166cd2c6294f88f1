"""State that the serving processes share: counters of each, versions of keys, and download slots."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReadDescriptor
from zope.interface import implementer

from image_service.common.concurrency.coordination import SIZE_BYTES as VERSIONS_BYTES
from image_service.server.transport.admission.counts import CELLS, SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorFDSet
    from twisted.python.failure import Failure

    from image_service.server.transport.admission.counts import Counts

MAX_PROCESSES = 64
_CELL_BYTES = 8
_ROW_BYTES = CELLS * _CELL_BYTES  # a cache line, so that serving processes do not write to one another's
_ROWS_BYTES = MAX_PROCESSES * _ROW_BYTES
_SIZE_BYTES = _ROWS_BYTES + VERSIONS_BYTES


def create_memory() -> int:
    """Create the memory, filled with zeros, and return its descriptor."""
    descriptor = os.memfd_create("image-service")
    os.truncate(descriptor, _SIZE_BYTES)
    return descriptor


class SharedMemory:
    """The counters of each, and the versions of keys.

    Args:
        descriptor: from ``create_memory``, perhaps in another process; may be closed afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        self._bytes = memoryview(mmap.mmap(descriptor, _SIZE_BYTES))

    def row(self, number: int) -> memoryview[int]:
        """Return the cells of the serving process with this number; each is written atomically."""
        start = number * _ROW_BYTES
        return self._bytes[start : start + _ROW_BYTES].cast("q")

    @property
    def versions(self) -> memoryview:
        """The part for the versions of `SharedMemoryCoordination`."""
        return self._bytes[_ROWS_BYTES:]


def create_slots(limit: int) -> int:
    """Create the slots of all, and return a descriptor: a read acquires one, a write releases it."""
    return os.eventfd(limit, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)


@implementer(IReadDescriptor)
class SharedSlotPool:
    """Slots that other processes acquire too.

    Args:
        reactor: reports that another process has released one.
        descriptor: from ``create_slots``.
        counts: of this process: the supervisor returns its slots if it dies.
    """

    def __init__(self, reactor: IReactorFDSet, descriptor: int, limit: int, counts: Counts) -> None:
        self.limit = limit
        self.counts = counts
        self._reactor = reactor
        self._descriptor = descriptor
        self._freed: Callable[[], None] | None = None

    # For a process that is killed between two lines below, one slot too many is returned: an extra slot does
    # no harm, while a lost one would be lost until a restart.

    def acquire_slot(self) -> bool:
        """See `SlotPool`."""
        self.counts.add(SLOTS, 1)
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            self.counts.add(SLOTS, -1)
            return False
        return True

    def release_slot(self) -> None:
        """See `SlotPool`."""
        os.eventfd_write(self._descriptor, 1)
        self.counts.add(SLOTS, -1)

    def notify_released(self, freed: Callable[[], None] | None) -> None:
        """See `SlotPool`."""
        self._freed = freed
        if freed is None:
            self._reactor.removeReader(self)
        else:
            self._reactor.addReader(self)

    def doRead(self) -> None:
        """A slot is free, unless another process was faster."""
        if self._freed is not None:
            self._freed()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def connectionLost(self, reason: Failure) -> None:
        """Do nothing: the reactor stops."""

    def logPrefix(self) -> str:
        """Return its name in the log."""
        return "slots"


def return_resources(row: memoryview[int], slots: int) -> None:
    """Return what a serving process that has died holds, given its row and the slots' descriptor."""
    if row[SLOTS]:
        os.eventfd_write(slots, row[SLOTS])
    for cell in range(CELLS):
        row[cell] = 0
