"""Coordination of replicas: a claim for each lock, and each bump is announced to the others.

What a process knows by its counters can be late by the time of a notification. Nothing relies on that but
what is read again within the TTL: who holds a claim reads the repository, and a mount that moves is waited
for.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater

from image_service.common.concurrency.coordination import Coordination
from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.claims import CLAIM_SECONDS, Claim
from image_service.server.snapshots.replicas.observer import ClaimOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import SharedMemoryCoordination
    from image_service.common.concurrency.process_parts import InThread
    from image_service.server.snapshots.replicas.claims import Claims
    from image_service.server.snapshots.replicas.observer import ReplicaObserver
    from image_service.server.snapshots.replicas.outbox import Outbox

RENEW_SECONDS = 10.0
POLL_SECONDS = 0.1
"""Between two questions whether what others have claimed is free."""
MARGIN_SECONDS = 5.0
"""Before its expiry a claim counts as lost to its holder, who may be writing until then."""
NOTIFIED_SECONDS, POLLED_SECONDS = 0.05, 1.5
"""After this all replicas have seen a change: those that are notified, and those that ask each second."""


@attrs.define(eq=False)
class _Held:
    """A claim of this process, and until when it is surely no other's, in seconds of the clock."""

    claim: Claim
    until: float


class ReplicaCoordination(Coordination):
    """Coordination of all processes of all replicas.

    Without the database nothing is locked: each process goes on by itself.

    Args:
        local: of the processes of this host.
        in_thread: for transactions; raises StoreFailed in time also if the database hangs.
    """

    def __init__(  # noqa: PLR0913 - its parts
        self,
        local: SharedMemoryCoordination,
        claims: Claims,
        outbox: Outbox,
        in_thread: InThread,
        clock: IReactorTime,
        *,
        observer: ReplicaObserver,
    ) -> None:
        self._local = local
        self._claims = claims
        self._outbox = outbox
        self._in_thread = in_thread
        self._clock = clock
        self._observer = observer
        self._held: set[_Held] = set()
        self._waiting: dict[bytes, list[Deferred[None]]] = defaultdict(list)

    @asynccontextmanager
    async def lock(self, key: bytes) -> AsyncIterator[Callable[[], bool]]:
        """Hold a claim on a key."""
        held = await self._acquire(key)
        if held is None:
            yield lambda: True
            return
        renewing = LoopingCall(self._renew, held)
        renewing.clock = self._clock
        renewing.start(RENEW_SECONDS, now=False)
        try:
            yield lambda: self._clock.seconds() < held.until
        finally:
            renewing.stop()
            self._release(held)

    def release_all(self) -> None:
        """Release what this process holds: it stops, and does not come to the end of its work."""
        for held in list(self._held):
            self._release(held)

    def counter(self, key: bytes) -> int:
        """Return the version counter of a key on this host."""
        return self._local.counter(key)

    def bump(self, key: bytes) -> int:
        """Change the counter of a key, on all hosts."""
        counter = self._local.bump(key)
        self._outbox.change(key, counter)
        return counter

    def watch(self, *keys: bytes) -> Callable[[], bool]:
        """Return a function that compares the counters of this host."""
        return self._local.watch(*keys)

    async def run_if_shared(self, work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Run the work."""
        return await work()

    def until_visible(self, write: Deferred[Any], *bumped: bytes) -> Deferred[Any] | None:
        """Return the write, and after that what has been announced; None: both are over."""
        if not bumped:
            return self._local.until_visible(write)
        return self._local.until_visible(Deferred.fromCoroutine(self._until_seen(write)))

    async def _until_seen(self, write: Deferred[Any]) -> None:
        await write
        await self._outbox.until_tried()
        seen = NOTIFIED_SECONDS if self._local.is_notified else POLLED_SECONDS
        left = self._outbox.changed_at + seen - self._clock.seconds()
        if left > 0:
            await deferLater(self._clock, left)

    async def _acquire(self, key: bytes) -> _Held | None:
        """Wait for the claim on a key; None: the database cannot be used."""
        claim = Claim(key)
        started_at = asked_at = self._clock.seconds()
        while (outcome := await self._try(claim)) is None:
            await self._until_free(key)
            asked_at = self._clock.seconds()
        if outcome is ClaimOutcome.ACQUIRED and asked_at > started_at:
            outcome = ClaimOutcome.WAITED
        self._observer.record_claim(outcome, self._clock.seconds() - started_at)
        if outcome is ClaimOutcome.UNAVAILABLE:
            return None
        self._local.bump(key)  # another replica may have bumped it, and its notification be on the way
        held = _Held(claim, asked_at + CLAIM_SECONDS - MARGIN_SECONDS)
        self._held.add(held)
        return held

    async def _try(self, claim: Claim) -> ClaimOutcome | None:
        try:
            return await self._in_thread(partial(self._claims.acquire, claim))
        except StoreFailed:
            self._outbox.release(claim)  # it may be stored nevertheless
            return ClaimOutcome.UNAVAILABLE

    def _release(self, held: _Held) -> None:
        if held in self._held:
            self._held.remove(held)
            held.until = -inf
            self._outbox.release(held.claim)

    def _until_free(self, key: bytes) -> Deferred[None]:
        """Return a Deferred that fires when nobody seems to have a claim on a key."""
        free: Deferred[None] = Deferred()
        if not self._waiting:
            Deferred.fromCoroutine(self._poll())
        self._waiting[key].append(free)
        return free

    async def _poll(self) -> None:
        """Ask for all keys together that somebody waits for, until nobody does."""
        while True:
            await deferLater(self._clock, POLL_SECONDS)
            try:
                held = await self._in_thread(partial(self._claims.find_held, list(self._waiting)))
            except StoreFailed:
                held = set()  # each learns that for itself
            freed = [self._waiting.pop(key) for key in list(self._waiting) if key not in held]
            is_over = not self._waiting
            for free in chain.from_iterable(freed):
                free.callback(None)
            if is_over:
                return

    async def _renew(self, held: _Held) -> None:
        now = self._clock.seconds()
        try:
            is_mine = await self._in_thread(partial(self._claims.renew, held.claim))
        except StoreFailed:
            return  # until the next time, or until it is over
        if held in self._held:  # else it was released meanwhile
            held.until = now + CLAIM_SECONDS - MARGIN_SECONDS if is_mine else -inf
