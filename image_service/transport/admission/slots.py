"""Admission of downloads: each needs one of a limited number of slots, and waits for it for a limited time.

What is small needs none: a range of a mount, a HEAD, a probe and a refusal are answered while slow readers
hold every slot.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

from image_service.errors import Unavailable
from image_service.transport.observer import RefusalReason

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.http.response import Response
    from image_service.transport.admission.slot_pool import SlotPool
    from image_service.transport.observer import Observer

SMALL_BYTES = 1024 * 1024
"""Content up to here needs no slot."""
SLOT_TIMEOUT_SECONDS = 2
ANSWER_SECONDS = 2.8
"""Firmware gives up after 5 s; it gets a response within 3, whatever its request has waited for."""
RETRY_AFTER_SECONDS = 5


def is_download(response: Response) -> bool:
    """Return True if a response needs a slot."""
    return response.length > SMALL_BYTES and bool(response.body)


@attrs.frozen(eq=False)
class Slot:
    """A download's slot, or its position in the queue for one."""

    granted: Deferred[bool] = attrs.field(factory=Deferred, init=False)
    """Fires with True when the slot is acquired, with False when it is refused; perhaps at once."""


class Slots:
    """The slots for downloads of all listeners, granted in the order of the requests.

    Between processes there is no order: a request that waits in one may be overtaken by another's.

    Args:
        pool: of the slots.
        queue_length: how many downloads may wait.
        timeout_seconds: how long one waits.
        clock: the reactor's.
        observer: records refusals.
    """

    def __init__(
        self,
        pool: SlotPool,
        queue_length: int,
        timeout_seconds: float,
        clock: IReactorTime,
        observer: Observer,
    ) -> None:
        self.pool = pool
        self._queue_length = queue_length
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._acquired: set[Slot] = set()
        self._queue: OrderedDict[Slot, IDelayedCall] = OrderedDict()
        self._granting = False
        self._observer = observer

    @property
    def limit(self) -> int:
        """How many slots there are."""
        return self.pool.limit

    @property
    def acquired(self) -> int:
        """How many slots downloads of this process hold."""
        return len(self._acquired)

    @property
    def waiting(self) -> int:
        """How many downloads wait."""
        return len(self._queue)

    def acquire(self, began: float) -> Slot:
        """Return a slot, or a position in the queue for one; to be released in any case.

        Args:
            began: the clock's seconds when the request came; the time it has waited already counts.
        """
        slot = Slot()
        seconds = min(self._timeout_seconds, began + ANSWER_SECONDS - self._clock.seconds())
        if not self._queue and self.pool.acquire_slot():
            self._grant(slot)
        elif len(self._queue) >= self._queue_length:
            self._refuse(slot, RefusalReason.QUEUE_FULL)
        elif seconds <= 0:
            self._refuse(slot, RefusalReason.QUEUE_WAIT)
        else:
            self._queue[slot] = self._clock.callLater(seconds, self._time_out, slot)
            self.pool.notify_released(self._grant_next)
        return slot

    def refusal(self) -> Unavailable:
        """Return the error for a download without a slot."""
        detail = f"the limit of {self.limit} concurrent downloads is reached"
        return Unavailable(detail, retry_after_seconds=RETRY_AFTER_SECONDS)

    def release(self, slot: Slot) -> None:
        """Release a slot, or leave the queue; does nothing if it was refused."""
        timer = self._queue.pop(slot, None)
        if timer is not None:
            timer.cancel()
            slot.granted.callback(False)  # noqa: FBT003 - the word before it says what it means
        if slot in self._acquired:
            self._acquired.remove(slot)
            self.pool.release_slot()
            self._grant_next()

    def _grant_next(self) -> None:
        """Grant free slots in a loop: a short download may end before `_grant` returns."""
        if self._granting:
            return
        self._granting = True
        while self._queue and self.pool.acquire_slot():
            slot, timer = self._queue.popitem(last=False)
            timer.cancel()
            self._grant(slot)
        self._granting = False
        if not self._queue:
            self.pool.notify_released(None)

    def _grant(self, slot: Slot) -> None:
        self._acquired.add(slot)
        slot.granted.callback(True)  # noqa: FBT003 - same

    def _time_out(self, slot: Slot) -> None:
        del self._queue[slot]
        self._refuse(slot, RefusalReason.QUEUE_WAIT)

    def _refuse(self, slot: Slot, reason: RefusalReason) -> None:
        self._observer.record_refusal(reason)
        slot.granted.callback(False)  # noqa: FBT003 - same
