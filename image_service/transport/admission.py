"""How many downloads run at once: each takes a slot, and where there is none waits for it, though not long.

What is small takes none: a range of a mount, a HEAD, a probe and a refusal are answered while slow readers
hold every slot.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import attrs
from twisted.internet.defer import Deferred

from image_service.errors import Unavailable
from image_service.transport.observer import NULL_OBSERVER, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.http.response import Response
    from image_service.transport.observer import Observer

SMALL_BYTES = 1024 * 1024
"""Content up to here takes no slot."""
PATIENCE_SECONDS = 2
ANSWER_SECONDS = 2.8
"""Firmware gives up after 5 s, and is to be told before 3, whatever its requests waited for."""
RETRY_AFTER_SECONDS = 5


def is_download(response: Response) -> bool:
    """Whether a response takes a slot.

    Args:
        response: about to be sent; to a HEAD it has no body.
    """
    return response.length > SMALL_BYTES and bool(response.body)


@attrs.frozen(eq=False)
class Slot:
    """A download's slot, or its place in the queue for one.

    Args:
        granted: fires with True once the slot is there; with False when it is clear that it will not be.
    """

    granted: Deferred[bool] = attrs.field(factory=Deferred, init=False)


class SlotPool(Protocol):
    """Where slots come from: those of one process, or of all that serve together.

    Attributes:
        limit: how many there are.
    """

    limit: int

    def take(self) -> bool:
        """Take one; False: there is none."""

    def give_back(self) -> None:
        """Give one back."""

    def notify(self, freed: Callable[[], None] | None) -> None:
        """Call ``freed`` whenever another process may have given one back; None: nobody waits for that."""


class LocalSlotPool:
    """The slots of one process, which nobody else takes.

    Args:
        limit: how many there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0

    def take(self) -> bool:
        """As ``Supply``'s."""
        there_is_one = self._taken < self.limit
        self._taken += there_is_one
        return there_is_one

    def give_back(self) -> None:
        """As ``Supply``'s."""
        self._taken -= 1

    def notify(self, freed: Callable[[], None] | None) -> None:
        """Do nothing: there is no other process."""


class ConnectionCounter:
    """How many clients are connected to all listeners, of one process."""

    def __init__(self) -> None:
        self.own = 0
        """To this process."""

    @property
    def total(self) -> int:
        """To all processes that serve together."""
        return self.own

    def change(self, by: int) -> None:
        """Count clients that have come, or, below 0, have gone."""
        self.own += by


class Slots:
    """The slots of all listeners, given in the order in which they are asked for.

    Between processes there is no order: who waits in one may see another's client come first.

    Args:
        supply: where they come from.
        queue_length: how many downloads may wait.
        patience_seconds: how long one waits.
        clock: the reactor's.
        observer: told of refusals.
    """

    def __init__(
        self,
        supply: SlotPool,
        queue_length: int,
        patience_seconds: float,
        clock: IReactorTime,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._supply = supply
        self._queue_length = queue_length
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._taken: set[Slot] = set()
        self._queue: OrderedDict[Slot, IDelayedCall] = OrderedDict()
        self._granting = False
        self._observer = observer

    @property
    def limit(self) -> int:
        """How many there are."""
        return self._supply.limit

    @property
    def taken(self) -> int:
        """How many slots downloads of this process have."""
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """How many downloads wait."""
        return len(self._queue)

    def ask(self, began: float) -> Slot:
        """Ask for a slot.

        Args:
            began: when the request came, by the clock; what it has waited for already shortens its wait.

        Returns:
            to be released whatever becomes of it; ``granted`` may have fired already.
        """
        slot = Slot()
        seconds = min(self._patience_seconds, began + ANSWER_SECONDS - self._clock.seconds())
        if not self._queue and self._supply.take():
            self._grant(slot)
        elif len(self._queue) >= self._queue_length:
            self._refuse(slot, RefusalReason.QUEUE_FULL)
        elif seconds <= 0:
            self._refuse(slot, RefusalReason.QUEUE_WAIT)
        else:
            self._queue[slot] = self._clock.callLater(seconds, self._give_up, slot)
            self._supply.notify(self._grant_next)
        return slot

    def refusal(self) -> Unavailable:
        """What a download without a slot is told."""
        detail = f"this service sends {self.limit} downloads already, which is its limit"
        return Unavailable(detail, retry_after_seconds=RETRY_AFTER_SECONDS)

    def release(self, slot: Slot) -> None:
        """Give a slot back, or its place in the queue; for one that has neither nothing happens."""
        timer = self._queue.pop(slot, None)
        if timer is not None:
            timer.cancel()
            slot.granted.callback(False)  # noqa: FBT003 - the word before it says what it means
        if slot in self._taken:
            self._taken.remove(slot)
            self._supply.give_back()
            self._grant_next()

    def _grant_next(self) -> None:
        """Give free slots to who waits: in a loop, for a short download is over before ``_grant`` returns."""
        if self._granting:
            return
        self._granting = True
        while self._queue and self._supply.take():
            slot, timer = self._queue.popitem(last=False)
            timer.cancel()
            self._grant(slot)
        self._granting = False
        if not self._queue:
            self._supply.notify(None)

    def _grant(self, slot: Slot) -> None:
        self._taken.add(slot)
        slot.granted.callback(True)  # noqa: FBT003 - same

    def _give_up(self, slot: Slot) -> None:
        del self._queue[slot]
        self._refuse(slot, RefusalReason.QUEUE_WAIT)

    def _refuse(self, slot: Slot, reason: RefusalReason) -> None:
        self._observer.record_refusal(reason)
        slot.granted.callback(False)  # noqa: FBT003 - same
