"""Pins, in step with the processes that share the store: what another has validated, pinned or ended.

A pin is current for as long as its question's stamp is what it was when it was looked up. A new generation,
and an end, is written to the store first; then the stamp is renewed, and the other processes look there.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from image_service.concurrency.single_flight import SingleFlight
from image_service.snapshots.cache_entry import CacheEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.coordination import Coordination
    from image_service.snapshots.archive import Archive
    from image_service.snapshots.snapshot import Snapshot, SnapshotKey

MAX_PINNED = 16384
"""Questions whose state is kept in memory; beyond that the store is asked again."""


class SharedPins:
    """What is pinned, by question.

    Args:
        archive: keeps snapshots beyond this process.
        clock: tells the time, in seconds since the epoch.
        coordination: with the processes that share the store.
    """

    def __init__(self, archive: Archive, clock: IReactorTime, coordination: Coordination) -> None:
        self._archive = archive
        self._clock = clock
        self._coordination = coordination
        self._pins: OrderedDict[SnapshotKey, CacheEntry] = OrderedDict()
        self._catching_up: SingleFlight[SnapshotKey, CacheEntry | None] = SingleFlight()

    def __iter__(self) -> Iterator[CacheEntry]:
        """Give those that are current."""
        return filter(self.is_current, self._pins.values())

    def known(self, question: SnapshotKey) -> CacheEntry | None:
        """Give what this process knows to be pinned, whatever others have done since."""
        return self._pins.get(question)

    def used(self, pin: CacheEntry) -> None:
        """Note that a pin is of use: others make room first."""
        if pin.snapshot.question in self._pins:
            self._pins.move_to_end(pin.snapshot.question)

    def is_current(self, pin: CacheEntry) -> bool:
        """Tell whether no other process has changed what is pinned."""
        return pin.stamp == self._coordination.version(pin.snapshot.key)

    async def current(self, question: SnapshotKey) -> CacheEntry | None:
        """Give what is pinned, by whichever process.

        Args:
            question: what it answers.

        Returns:
            the pin; None: this process knew of none, or the one that it knew has ended.
        """
        pin = self._pins.get(question)
        if pin is not None and not self.is_current(pin):
            pin = await self._catching_up.join(question, partial(self.catch_up, pin))
        if pin is not None:
            self.used(pin)
        return pin

    async def catch_up(self, pin: CacheEntry) -> CacheEntry | None:
        """Take over what another process knows by now.

        Args:
            pin: what this one knew.

        Returns:
            what is pinned then; None: it has ended.
        """
        if self.is_current(pin):
            return pin
        snapshot, stamp = pin.snapshot, self._coordination.version(pin.snapshot.key)
        stored = await self._archive.state(snapshot.question)
        if stored is not None and pin.is_superseded_by(stored):
            if not stored.ended:
                return await self._move_on(pin, stamp)
            self._drop(pin)
            return None
        if stored is not None and stored.generation == snapshot.generation:
            pin.confirm(min(stored.validated_at, self._clock.seconds()))
        pin.stamp = stamp
        return pin

    async def restore(self, question: SnapshotKey) -> CacheEntry | None:
        """Pin what the archive has; None: nothing."""
        stamp = self._coordination.version(self._archive.key_of(question))
        found = await self._archive.latest(question)
        if found is None:
            return None
        snapshot, validated_at = found
        return self._remember(CacheEntry(snapshot, min(validated_at, self._clock.seconds()), stamp))

    def pin(self, snapshot: Snapshot, validated_at: float) -> CacheEntry:
        """Pin a snapshot, for all processes: it is in the archive."""
        version = self._coordination.bump(snapshot.key)
        return self._remember(CacheEntry(snapshot, validated_at, version))

    def renew(self, pin: CacheEntry) -> None:
        """Have the other processes look at the archive again."""
        is_current = self.is_current(pin)
        version = self._coordination.bump(pin.snapshot.key)
        if is_current:  # else this process has to look, too
            pin.stamp = version

    async def end(self, pin: CacheEntry) -> None:
        """Let go of all generations, in all processes."""
        known = self._pins.pop(pin.snapshot.question, pin)  # another, where this one has made room
        known.snapshot.tenure.ended = pin.snapshot.tenure.ended = True
        self._coordination.bump(pin.snapshot.key)
        await self._archive.end(pin.snapshot, self._clock.seconds())
        self._coordination.bump(pin.snapshot.key)  # for processes that have looked too early

    async def generation(self, pin: CacheEntry, number: int) -> Snapshot | None:
        """Give one of a pin's generations.

        Args:
            pin: whose.
            number: which.

        Returns:
            the snapshot; None: it is not kept.
        """
        if known := pin.generation(number):
            return known
        found = await self._archive.find(pin.snapshot.question, number)
        if known := pin.generation(number):  # another reader of it was faster
            return known
        if found is not None:
            pin.keep_older(found)
        return found

    async def rejoin(self, pin: CacheEntry, older: Snapshot) -> None:
        """Give a snapshot whose pin had to make room the tenure of the one that came after it.

        Args:
            pin: which came after it.
            older: the snapshot.
        """
        if await self.generation(pin, older.generation) is None:
            older.tenure.ended = True  # in the meantime
        else:
            older.tenure = pin.snapshot.tenure

    async def _move_on(self, pin: CacheEntry, stamp: int) -> CacheEntry:
        """Pin the generation that another process has pinned."""
        older = pin.snapshot
        found = await self._archive.latest(older.question)
        is_held = older.generation < 0 or await self._archive.holds(older)
        known = self._pins.get(older.question, pin)
        pin.stamp = stamp
        if found is None or known is not pin:
            return known
        snapshot, validated_at = found
        renewed = self._remember(CacheEntry(snapshot, min(validated_at, self._clock.seconds()), stamp))
        if is_held:
            snapshot.tenure = older.tenure
            renewed.keep_older(older, *pin.older)
        else:  # there has been an end in between
            older.tenure.ended = True
            self._archive.forget(older)
        return renewed

    def _drop(self, pin: CacheEntry) -> None:
        """Let go of what another process has seen the end of."""
        pin.snapshot.tenure.ended = True
        self._archive.forget(pin.snapshot)
        if self._pins.get(pin.snapshot.question) is pin:
            del self._pins[pin.snapshot.question]

    def _remember(self, pin: CacheEntry) -> CacheEntry:
        self._pins[pin.snapshot.question] = pin
        while len(self._pins) > MAX_PINNED:
            self._pins.popitem(last=False)
        return pin
