"""The slots for downloads: of one process, or of all that serve together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from image_service.server.transport.admission.counts import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.transport.admission.counts import Counts


class SlotPool(Protocol):
    """The slots of one process, or of all that serve together."""

    limit: int
    """The number of slots."""
    counts: Counts
    """Those in use."""

    def acquire_slot(self) -> bool:
        """Acquire a slot; False if none is free."""

    def release_slot(self) -> None:
        """Release a slot."""

    def notify_released(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` whenever another process may have released a slot; None: no longer."""


class LocalSlotPool:
    """The slots of one process.

    Args:
        counts: of this process.
    """

    def __init__(self, limit: int, counts: Counts) -> None:
        self.limit = limit
        self.counts = counts

    def acquire_slot(self) -> bool:
        """See `SlotPool`."""
        is_free = self.counts.own(SLOTS) < self.limit
        self.counts.add(SLOTS, is_free)
        return is_free

    def release_slot(self) -> None:
        """See `SlotPool`."""
        self.counts.add(SLOTS, -1)

    def notify_released(self, callback: Callable[[], None] | None) -> None:
        """Do nothing: there is no other process."""
