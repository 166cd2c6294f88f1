"""What a worker has of what there is only so much of: slots and connections."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReadDescriptor
from zope.interface import implementer

from image_service.app.workers.shared_memory import CONNECTIONS, SLOTS
from image_service.transport.admission import ConnectionCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twisted.internet.interfaces import IReactorFDSet
    from twisted.python.failure import Failure


def create_slots(limit: int) -> int:
    """Make the slots of all workers.

    Args:
        limit: how many.

    Returns:
        a descriptor: to read it is to take one, to write it to give one back.
    """
    return os.eventfd(limit, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)


@implementer(IReadDescriptor)
class SharedSlotPool:
    """Slots of which other processes take too.

    Args:
        reactor: tells when others have given one back.
        descriptor: of ``create_slots``.
        limit: how many there are.
        row: of this worker, where it says how many it has: they are given back for it when it dies.
    """

    def __init__(self, reactor: IReactorFDSet, descriptor: int, limit: int, row: memoryview[int]) -> None:
        self.limit = limit
        self._reactor = reactor
        self._descriptor = descriptor
        self._row = row
        self._freed: Callable[[], None] | None = None

    # Who is killed between two lines below has one too many given back for it: the service can do with one
    # slot more, while one that was lost would be lost to the end.

    def acquire_slot(self) -> bool:
        """See `SlotPool`."""
        self._row[SLOTS] += 1
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            self._row[SLOTS] -= 1
            return False
        return True

    def release_slot(self) -> None:
        """See `SlotPool`."""
        os.eventfd_write(self._descriptor, 1)
        self._row[SLOTS] -= 1

    def notify_released(self, freed: Callable[[], None] | None) -> None:
        """See `SlotPool`."""
        self._freed = freed
        if freed is None:
            self._reactor.removeReader(self)
        else:
            self._reactor.addReader(self)

    def doRead(self) -> None:
        """There is a slot, unless another process was faster."""
        if self._freed is not None:
            self._freed()

    def fileno(self) -> int:
        """Of the descriptor."""
        return self._descriptor

    def connectionLost(self, reason: Failure) -> None:
        """Do nothing: the reactor ends."""

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "slots"


def return_resources(row: memoryview[int], slots: int) -> None:
    """Give back what a worker had that has died.

    Args:
        row: the worker's.
        slots: descriptor of ``create_slots``.
    """
    if row[SLOTS]:
        os.eventfd_write(slots, row[SLOTS])
    row[SLOTS] = row[CONNECTIONS] = 0


class SharedConnectionCounter(ConnectionCounter):
    """Counts the clients of all workers.

    Args:
        row: of this worker.
        rows: of all.
    """

    def __init__(self, row: memoryview[int], rows: Sequence[memoryview[int]]) -> None:
        super().__init__()
        self._row = row
        self._rows = rows

    @property
    def total(self) -> int:
        """To all processes that serve together."""
        return sum(row[CONNECTIONS] for row in self._rows)

    def add(self, by: int) -> None:
        """Count clients that have come, or, below 0, have gone."""
        super().add(by)
        self._row[CONNECTIONS] = self.own
