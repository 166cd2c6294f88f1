"""The newest snapshot of each key, in step with the other processes that share the repository.

An entry is current while the version of its key is what it was when the entry was read. Whoever stores a new
generation, a validation or a refusal bumps the version afterwards; then the others read the repository again.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

from image_service.common.concurrency.lru import LruCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import Unavailable
from image_service.server.snapshots.cache.cache_entry import CacheEntry
from image_service.server.snapshots.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.errors import ImageServiceError
    from image_service.server.snapshots.storage.encryption import Seal
    from image_service.server.snapshots.storage.sealed_repository import SealedRepository
    from image_service.server.snapshots.storage.snapshot import SnapshotKey

MAX_ENTRIES = 16384
"""Beyond this the repository is read again."""


class SnapshotCache:
    """Cache entries by snapshot key."""

    def __init__(self, repository: SealedRepository, clock: IReactorTime, coordination: Coordination) -> None:
        self._repository = repository
        self._clock = clock
        self._coordination = coordination
        self._entries: LruCache[SnapshotKey, CacheEntry] = LruCache(MAX_ENTRIES)
        self._refreshing: SingleFlight[SnapshotKey, CacheEntry | None] = SingleFlight()

    @property
    def held_bytes(self) -> int:
        """What the entries take in memory, about."""
        return self._entries.held_bytes

    def current_entries(self) -> Iterator[CacheEntry]:
        """Return the entries that no other process has changed."""
        return filter(self.is_current, self._entries.values())

    def get_cached_entry(self, key: SnapshotKey) -> CacheEntry | None:
        """Return the entry of a key, whatever other processes have changed since."""
        return self._entries.get(key)

    def is_current(self, entry: CacheEntry) -> bool:
        """Return True if no other process has changed what is stored."""
        return entry.key_counter == self._coordination.counter(entry.snapshot.stored_key)

    async def get(self, key: SnapshotKey) -> CacheEntry | None:
        """Return the entry of a key as all processes know it; None: unknown to this one, or ended."""
        entry = self._entries.get(key)
        if entry is None or self.is_current(entry):
            return entry
        return await self._refreshing.join(key, partial(self.refresh, entry))

    async def refresh(self, entry: CacheEntry) -> CacheEntry | None:
        """Take over what other processes have stored, and return the key's entry; None: it has ended."""
        if self.is_current(entry):
            return entry
        snapshot = entry.snapshot
        version = self._coordination.counter(snapshot.stored_key)
        try:
            stored = await self._repository.find_newest(snapshot.stored_key)
        except Unavailable:  # what is known here is served, and validated
            stored = None
        if entry.snapshot is not snapshot:  # superseded by this process in the meantime
            return entry
        if stored is not None:
            entry.update(stored)
            if entry.is_superseded_by(stored):
                return await self._load_newest(entry, version)
        entry.record_read(version)
        return entry

    async def load(self, key: SnapshotKey, seal: Seal) -> CacheEntry | None:
        """Make an entry of what is stored; None: nothing is."""
        version = self._coordination.counter(seal.key)
        found = await self._repository.load_newest(key, seal)
        if found is None:
            return None
        snapshot, stored = found
        return self._add(CacheEntry(snapshot, stored.validated_at, version, is_refused=stored.is_refused))

    def add(self, snapshot: Snapshot, validated_at: float) -> CacheEntry:
        """Make the entry of a key's first snapshot, which is in the repository."""
        version = self._coordination.bump(snapshot.stored_key)
        return self._add(CacheEntry(snapshot, validated_at, version))

    def supersede(self, entry: CacheEntry, snapshot: Snapshot, validated_at: float) -> None:
        """Put a new generation, which is in the repository, in the place of an entry's newest."""
        entry.validity.record_answer(validated_at)
        self.replace(entry, snapshot)

    def replace(self, entry: CacheEntry, snapshot: Snapshot) -> None:
        """Put a new generation of the same answer, which is in the repository, in the place of the newest."""
        entry.replace(snapshot, self._coordination.bump(snapshot.stored_key))
        self._add(entry)

    def announce(self, entry: CacheEntry) -> None:
        """Have the other processes read the repository again."""
        is_current = self.is_current(entry)
        version = self._coordination.bump(entry.snapshot.stored_key)
        if is_current:  # else this process has to read it, too
            entry.record_read(version)

    async def refuse(self, entry: CacheEntry, refusal: ImageServiceError) -> None:
        """Let nothing of a key be served, in all processes."""
        is_news, cached = not entry.validity.is_refused, self._entries.peek(entry.snapshot.key)
        for each in (entry, cached or entry):  # another one, if this one was evicted
            each.validity.record_refusal(refusal, self._clock.seconds())
        if is_news:
            self.announce(entry)
            await self._repository.record_refusal(entry.snapshot)
            self.announce(entry)  # to processes that have read before the write

    async def end(self, entry: CacheEntry) -> None:
        """Drop all generations of a key, in all processes.

        Raises:
            Unavailable: replicas share the repository, which cannot be written; the entry stays refused.
        """
        snapshot = entry.snapshot
        self._coordination.bump(snapshot.stored_key)
        await self._repository.end(snapshot, self._clock.seconds())
        for each in (entry, self._entries.pop(snapshot.key) or entry):  # same
            each.validity.end()
        self._coordination.bump(snapshot.stored_key)  # for processes that have read before the write

    async def find_generation(
        self, entry: CacheEntry, number: int, layout: int | None = None
    ) -> Snapshot | None:
        """Return a generation of an entry's key, with its layout if known; None: it is not stored."""
        if known := entry.find_generation(number):
            return known
        newest = entry.snapshot
        if layout is None:
            layout = await self._repository.find_layout(newest.stored_key, number)
        if layout is None:
            return None
        found = Snapshot(newest.key, newest.seal, number, -inf, -inf, layout)
        is_stored = await self._repository.load(found) is not None
        if known := entry.find_generation(number):  # loaded for another request meanwhile
            return known
        if not is_stored:
            return None
        entry.add_older(found)
        return found

    async def reattach(self, entry: CacheEntry, snapshot: Snapshot) -> None:
        """Have a snapshot whose entry was evicted share the validity of the entry that replaced it."""
        is_stored = await self.find_generation(entry, snapshot.generation, snapshot.layout)
        if is_stored is not None:
            snapshot.join(entry.validity, is_newest=False)
        elif snapshot.validity is not None:
            snapshot.validity.end()  # in the meantime

    async def _load_newest(self, entry: CacheEntry, version: int) -> CacheEntry | None:
        """Supersede an entry's snapshot by the one that another process has stored."""
        older = entry.snapshot
        found = await self._repository.load_newest(older.key, older.seal)
        has_ended = older.generation > 0 and await self._repository.has_ended(older)
        entry.record_read(version)
        cached = self._entries.peek(older.key) or entry
        if cached.validity.is_ended:
            return None
        if found is None or cached is not entry or entry.snapshot is not older:
            return cached
        snapshot, stored = found
        if has_ended:  # in between
            entry.validity.end()
            self._repository.forget(older)
            self._entries.pop(older.key)
            return self._add(CacheEntry(snapshot, stored.validated_at, version, is_refused=stored.is_refused))
        entry.replace(snapshot, version)
        entry.validity.record_answer(stored.validated_at, is_refused=stored.is_refused)
        return self._add(entry)

    def _add(self, entry: CacheEntry) -> CacheEntry:
        self._entries[entry.snapshot.key] = entry
        return entry
