"""Admission of downloads: each needs one of a limited number of slots, and waits for it for a limited time.

Small responses need none: a range of a mount, a HEAD, a probe and a refusal are answered while slow readers
hold every slot. While downloads wait, those that are slower than the least rate are aborted, the slowest
first (decision 17).
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import Unavailable
from image_service.server.transport.admission.counts import PUBLIC_SLOTS, SLOTS, WAITING
from image_service.server.transport.admission.slot_queue import KINDS, NEVER, PUBLIC, SLOW, SlotQueue
from image_service.server.transport.sending.observer import AbortReason, RefusalReason

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.server.http.response import Response
    from image_service.server.transport.admission.slot_pool import SlotPool
    from image_service.server.transport.admission.slot_queue import Slot
    from image_service.server.transport.sending.observer import Observer

SMALL_BYTES = 1024 * 1024
"""Content up to here needs no slot."""
SLOT_TIMEOUT_SECONDS = 2
ANSWER_SECONDS = 2.8
"""Firmware gives up after 5 s; it gets a response within 3, whatever its request has waited for."""
RETRY_AFTER_SECONDS = 5
CHECK_SECONDS = 0.5
"""How often rates are measured and slow downloads aborted."""
CONTENTION_SECONDS = 10
"""How long rates are measured after the last download has waited; longer than `RETRY_AFTER_SECONDS`."""
SLOW_SECONDS = 60
"""How long an address comes after the others once a download of it was too slow."""
_ABORTED_PART = 0.1  # of all slots: so many downloads may be aborted in one check, so that not all are new
_PUBLIC_PART = 0.75  # of all slots
_MAX_SLOW_ADDRESSES = 16384


def is_download(response: Response) -> bool:
    """Return True if a response needs a slot."""
    return response.length > SMALL_BYTES and bool(response.body)


class Slots:
    """The slots for downloads of all listeners.

    Args:
        queue_length: how many downloads may wait.
        timeout_seconds: how long one waits.
        min_rate: bytes per second of a download while others wait; 0: any.
    """

    def __init__(  # noqa: PLR0913 - each a number or a part that tests replace
        self,
        pool: SlotPool,
        queue_length: int,
        timeout_seconds: float,
        *,
        min_rate: int,
        clock: IReactorTime,
        observer: Observer,
    ) -> None:
        self.pool = pool
        self._counts = pool.counts
        self._queue_length = queue_length
        self._timeout_seconds = timeout_seconds
        self._min_rate = min_rate
        self._clock = clock
        self._observer = observer
        self._public_limit = max(1, int(pool.limit * _PUBLIC_PART))
        self._acquired: set[Slot] = set()
        self._held: Counter[str] = Counter()  # by address
        self._queue = SlotQueue(self._held.__getitem__)
        self._slow_at: LruCache[str, float] = LruCache(_MAX_SLOW_ADDRESSES)  # by address
        self._contended_until = NEVER
        self._granting = False
        self._check: IDelayedCall | None = None

    @property
    def limit(self) -> int:
        """The number of slots."""
        return self.pool.limit

    @property
    def acquired(self) -> int:
        """The number of slots that downloads of this process hold."""
        return len(self._acquired)

    @property
    def waiting(self) -> int:
        """The number of downloads that wait."""
        return len(self._queue)

    def acquire(self, slot: Slot, began: float) -> None:
        """Acquire a slot, or a position in the queue for one; to be released in any case.

        Args:
            began: the clock's seconds when the request came; the time it has waited already counts.
        """
        now = self._clock.seconds()
        slot.slow_at = self._last_slow(slot.address, now)
        seconds = min(self._timeout_seconds, began + ANSWER_SECONDS - now)
        slot.timer = self._clock.callLater(max(0, seconds), self._refuse, slot, RefusalReason.QUEUE_WAIT)
        self._queue.add(slot)
        self._counts.add(WAITING + slot.kind, 1)
        self._grant()

    def refusal(self) -> Unavailable:
        """Return the error for a download without a slot."""
        detail = f"the limit of {self.limit} concurrent downloads is reached"
        return Unavailable(detail, retry_after_seconds=RETRY_AFTER_SECONDS)

    def release(self, slot: Slot) -> None:
        """Release a slot, or leave the queue; does nothing if it was refused."""
        if slot in self._acquired:
            self._acquired.remove(slot)
            self._held[slot.address] -= 1
            if not self._held[slot.address]:
                del self._held[slot.address]
            self._counts.add(PUBLIC_SLOTS, -slot.is_public)
            self.pool.release_slot()
        elif self._leave_queue(slot):
            slot.granted.callback(False)  # noqa: FBT003 - the word before it says what it means
        self._grant()

    def _leave_queue(self, slot: Slot) -> bool:
        if not self._queue.remove(slot):
            return False
        self._counts.add(WAITING + slot.kind, -1)
        if slot.timer is not None and slot.timer.active():
            slot.timer.cancel()
        return True

    def _grant(self) -> None:
        """Grant free slots, and refuse those who are too many.

        In a loop: a short download may end, and a refused client ask again, before the callback returns.
        """
        if self._granting:
            return
        self._granting = True
        while True:
            slot = self._queue.first(self._grantable_kinds())
            if slot is not None and self.pool.acquire_slot():
                self._leave_queue(slot)
                self._acquired.add(slot)
                self._held[slot.address] += 1
                self._counts.add(PUBLIC_SLOTS, slot.is_public)
                slot.granted.callback(True)  # noqa: FBT003 - same
            elif len(self._queue) > self._queue_length:
                self._refuse(self._queue.last(), RefusalReason.QUEUE_FULL)
            else:
                break
        self._granting = False
        # A download that may not have a free slot waits for the next check: the slot wakes others.
        self.pool.notify_released(None if slot is None else self._grant)
        self._schedule_check()

    def _grantable_kinds(self) -> set[int]:
        """Return the kinds of waiting downloads that may have a free slot.

        Addresses that were too slow leave it to other processes, if others wait there.
        """
        counts = self._counts
        kinds = {0} if self._is_public_part_used else {0, PUBLIC}
        if all(counts.total(WAITING + kind) == counts.own(WAITING + kind) for kind in kinds):
            kinds |= {SLOW + kind for kind in kinds}
        return kinds

    @property
    def _is_public_part_used(self) -> bool:
        return self._counts.total(PUBLIC_SLOTS) >= self._public_limit

    def _refuse(self, slot: Slot, reason: RefusalReason) -> None:
        self._leave_queue(slot)
        self._observer.record_refusal(reason)
        slot.granted.callback(False)  # noqa: FBT003 - same
        self._schedule_check()

    def _last_slow(self, address: str, now: float) -> float:
        """Return when a download of an address was too slow; `NEVER` if that is long ago."""
        slow_at = self._slow_at.peek(address)
        return slow_at if slow_at is not None and now - slow_at < SLOW_SECONDS else NEVER

    # Slow downloads.

    def _schedule_check(self) -> None:
        """Check regularly as long as a download of this process holds a slot or waits."""
        is_needed = bool(self._acquired) or len(self._queue) > 0
        if is_needed and self._check is None:
            self._check = self._clock.callLater(CHECK_SECONDS, self._check_rates)
        elif not is_needed and self._check is not None:
            self._check.cancel()
            self._check = None

    def _check_rates(self) -> None:
        """Abort slow downloads if any wait, in this process or another."""
        self._check = None
        now = self._clock.seconds()
        if any(self._counts.total(WAITING + kind) for kind in KINDS):
            self._contended_until = now + CONTENTION_SECONDS
        if self._min_rate and now < self._contended_until:
            self._abort_slow(now)
        self._grant()

    def _abort_slow(self, now: float) -> None:
        """Abort one slow download, the slowest first, for each that waits and can have its slot.

        One whose address was too slow takes the slot of such an address only.
        """
        measured = [(slot.rate.sample(now), slot) for slot in self._acquired]
        slow = [(rate, slot) for rate, slot in measured if rate is not None and rate < self._min_rate]
        counts = self._counts
        part = counts.own(SLOTS) / max(1, counts.total(SLOTS))  # the other processes abort the rest
        waiting = [ceil(counts.total(WAITING + kind) * part) for kind in KINDS]
        remaining = ceil(self.limit * _ABORTED_PART * part)
        is_public_part_used = self._is_public_part_used
        for _, slot in sorted(slow, key=lambda pair: pair[0]):
            for kind in KINDS if remaining else ():
                is_usable = slot.is_public or not (is_public_part_used and kind & PUBLIC)
                is_slow = self._last_slow(slot.address, now) > NEVER
                if waiting[kind] and is_usable and (is_slow or not kind & SLOW):
                    waiting[kind] -= 1
                    remaining -= 1
                    self._slow_at[slot.address] = now
                    detail = f"slower than {self._min_rate} bytes/s while other downloads waited"
                    slot.abort(AbortReason.TOO_SLOW, detail)
                    break
