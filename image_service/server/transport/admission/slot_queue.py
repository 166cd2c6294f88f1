"""The downloads that wait for a slot, and their order."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from twisted.internet.interfaces import IDelayedCall

    from image_service.server.transport.admission.rate import DownloadRate
    from image_service.server.transport.sending.observer import AbortReason

KINDS = range(4)
"""Of waiting downloads: 1 is added for public files, 2 for addresses that were too slow."""
PUBLIC, SLOW = 1, 2
NEVER = -math.inf
_numbers = count()


@attrs.define(eq=False)
class Slot:
    """A download's slot, or its position in the queue for one.

    Args:
        address: the client's, as `address_group` returns it.
        is_public: the file is the same for all, and needs no credentials.
    """

    address: str
    is_public: bool
    rate: DownloadRate
    abort: Callable[[AbortReason, str], None]
    granted: Deferred[bool] = attrs.field(factory=Deferred, init=False)
    """Fires with True when the slot is acquired, with False when it is refused; perhaps at once."""
    number: int = attrs.field(factory=_numbers.__next__, init=False)
    """In the order of the requests."""
    slow_at: float = attrs.field(default=NEVER, init=False)
    """When a download of the address was aborted as too slow, if that was shortly before this one came."""
    timer: IDelayedCall | None = attrs.field(default=None, init=False)
    """Ends the wait."""

    @property
    def kind(self) -> int:
        """The kind of the download: public or not, of a slow address or not (`KINDS`)."""
        return PUBLIC * self.is_public + SLOW * (self.slow_at > NEVER)


class SlotQueue:
    """The downloads that wait.

    Args:
        held: returns how many slots an address holds.
    """

    def __init__(self, held: Callable[[str], int]) -> None:
        self._held = held
        self._length = 0
        self._groups: dict[tuple[str, int], dict[Slot, None]] = {}  # by address and kind, the oldest first

    def __len__(self) -> int:
        return self._length

    def add(self, slot: Slot) -> None:
        """Add a download."""
        self._groups.setdefault((slot.address, slot.kind), {})[slot] = None
        self._length += 1

    def remove(self, slot: Slot) -> bool:
        """Remove a download; False if it does not wait."""
        group = self._groups.get((slot.address, slot.kind), {})
        if slot not in group:
            return False
        del group[slot]
        if not group:
            del self._groups[slot.address, slot.kind]
        self._length -= 1
        return True

    def first(self, kinds: Collection[int]) -> Slot | None:
        """Return the download of some kinds that is granted a slot next.

        Addresses that were too slow come last, the latest at the very end; else the address with the fewest
        slots comes first, then the oldest request.
        """
        firsts = (next(iter(group)) for (_, kind), group in self._groups.items() if kind in kinds)
        return min(
            firsts, key=lambda slot: (slot.slow_at, self._held(slot.address), slot.number), default=None
        )

    def last(self) -> Slot:
        """Return the download that is refused if there are too many.

        Addresses that were too slow come first; then that with the most downloads waiting, of which the
        newest is refused. Between equals it is a public file, then the newest request.
        """

        def rank(slot: Slot) -> tuple[int, int, bool, int]:
            waiting = len(self._groups[slot.address, slot.kind])
            return slot.kind & SLOW, waiting, slot.is_public, slot.number

        return max((next(reversed(group)) for group in self._groups.values()), key=rank)
