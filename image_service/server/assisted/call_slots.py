"""The slots for calls to assisted-service: which call may be sent, and which is next (decision 18).

    revalidation   an earlier answer is in use                            a quarter is reserved for these
    accepted       its credentials' latest answer was a success           a quarter of the others, for these
    unproven       other credentials, which anybody can make up           none
    anonymous      without credentials                                    none

All classes share the slots that are left. Of the default 32, 8 are reserved for revalidations, 6 for accepted
credentials, and 18 are shared: however many calls of one class wait, those of another find room.

A free slot goes to a request that has had one before, because its calls are of use together only; then to
the class with the fewest shared slots; then to the address with the fewest calls of that class in progress;
then to the call that came first. One address may hold all shared slots while nobody else asks.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs
from twisted.internet.defer import Deferred

from image_service.common.concurrency.single_flight import shielded
from image_service.core.errors import UpstreamQueueFull

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.server.assisted.caller import Caller

T = TypeVar("T")

WAIT_SECONDS = 1.5
"""How long after its request a call may wait: a call then has a second before the image is timed out."""
MAX_WAITING = 512
"""Calls of one class that wait. With 32 slots and calls of 0.1 s, about so many start in 1.5 s."""
RETRY_AFTER_SECONDS = 5


class CallClass(enum.Enum):
    """The purpose of a call, and whether its credentials are known."""

    REVALIDATION = "revalidation"
    ACCEPTED = "accepted"
    UNPROVEN = "unproven"
    ANONYMOUS = "anonymous"


_Client: TypeAlias = tuple[CallClass, str]


@attrs.frozen(eq=False)
class _Call:
    caller: Caller
    of: CallClass
    granted: Deferred[None]

    @property
    def client(self) -> _Client:
        return self.of, self.caller.address


def reserve(limit: int) -> Mapping[CallClass, int]:
    """Return how many of ``limit`` slots are reserved for each class."""
    revalidation = _quarter(limit)
    return Counter({CallClass.REVALIDATION: revalidation, CallClass.ACCEPTED: _quarter(limit - revalidation)})


def _quarter(slots: int) -> int:
    """Return a quarter, rounded: of one slot none, of two one."""
    return (slots + 2) // 4


class CallSlots:
    """A fixed number of slots.

    Args:
        record_refusal: is called for each request that gets no slot.
    """

    def __init__(
        self, limit: int, clock: IReactorTime, record_refusal: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        self._record_refusal = record_refusal
        self._reserved = reserve(limit)
        self._shared = limit - sum(self._reserved.values())
        self._running: Counter[_Client] = Counter()
        self._waiting: dict[_Call, IDelayedCall] = {}  # in the order of arrival
        self._places: Counter[_Client] = Counter()  # how many calls of each client wait
        self._is_granting = False

    def running(self) -> list[str]:
        """Return the class of each call that has a slot."""
        return [of.value for of, _ in self._running.elements()]

    def waiting(self) -> list[str]:
        """Return the class of each call that waits."""
        return [call.of.value for call in self._waiting]

    async def run(self, caller: Caller, of: CallClass, make_call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call when it has a slot, and return its result.

        Canceling this leaves the queue, or abandons the result: a call that has begun holds its slot to its
        end, because assisted-service is at work on it.

        Raises:
            UpstreamQueueFull: the request has waited for too long, or too many do.
        """
        call = _Call(caller, of, Deferred(lambda _: self._leave(call)))
        if self._has_room(of, self._count_taken()):
            self._grant(call)
        else:
            self._wait(call)
        await call.granted
        return await shielded(Deferred.fromCoroutine(self._finish(call, make_call())))

    async def _finish(self, call: _Call, made: Coroutine[Any, Any, T]) -> T:
        try:
            return await made
        finally:
            self._running[call.client] -= 1
            self._running += Counter()  # drops clients of whom none is in progress
            self._grant_free()

    def close(self) -> None:
        """Cancel the calls that wait."""
        for call in tuple(self._waiting):
            call.granted.cancel()

    def _wait(self, call: _Call) -> None:
        seconds = call.caller.came_at + WAIT_SECONDS - self._clock.seconds()
        if seconds <= 0 or not self._find_place(call):
            self._refuse(call)
        else:
            self._waiting[call] = self._clock.callLater(seconds, self._time_out, call)
            self._places[call.client] += 1
            call.caller.waiting += 1

    def _find_place(self, call: _Call) -> bool:
        """Return True if the queue has a place for a call; if need be, the last one of the longest client."""
        places = {client: count for client, count in self._places.items() if client[0] is call.of}
        if call.caller.waiting or sum(places.values()) < MAX_WAITING:
            return True
        longest = max(places, key=places.__getitem__)
        if places.get(call.client, 0) + 1 >= places[longest]:
            return False
        last = next(other for other in reversed(self._waiting) if other.client == longest)
        self._leave(last)
        self._refuse(last)
        return True

    def _count_taken(self) -> Counter[CallClass]:
        """Return how many slots each class holds beyond its reserve; negative: so many of that are free."""
        taken = Counter({of: -self._reserved[of] for of in CallClass})
        for (of, _), count in self._running.items():
            taken[of] += count
        return taken

    def _has_room(self, of: CallClass, taken: Counter[CallClass]) -> bool:
        return taken[of] < 0 or sum(max(count, 0) for count in taken.values()) < self._shared

    def _find_next(self) -> _Call | None:
        """Return the call that a free slot goes to; None: no call waits whose class has room."""
        taken = self._count_taken()
        with_room = [of for of in CallClass if self._has_room(of, taken)]
        return min(
            (call for call in self._waiting if call.of in with_room),
            key=lambda call: (not call.caller.has_started, taken[call.of], self._running[call.client]),
            default=None,
        )

    def _grant_free(self) -> None:
        """Grant the free slots in a loop: a call may end before `_grant` returns."""
        if self._is_granting:
            return
        self._is_granting = True
        while self._waiting and (call := self._find_next()):
            self._leave(call)
            self._grant(call)
        self._is_granting = False

    def _grant(self, call: _Call) -> None:
        self._running[call.client] += 1
        call.caller.has_started = True
        call.granted.callback(None)

    def _leave(self, call: _Call) -> None:
        timer = self._waiting.pop(call)
        if timer.active():
            timer.cancel()
        call.caller.waiting -= 1
        self._places[call.client] -= 1
        self._places += Counter()  # drops clients that do not wait

    def _time_out(self, call: _Call) -> None:
        self._leave(call)
        self._refuse(call)

    def _refuse(self, call: _Call) -> None:
        if not call.caller.is_refused:
            self._record_refusal()
        call.caller.is_refused = True
        call.granted.errback(
            UpstreamQueueFull(
                "too many images are being asked of assisted-service; UPSTREAM_CONCURRENCY limits its calls",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        )
