"""Snapshots: answers of assisted-service about an infra-env, pinned, so that a mount gets bytes of one image.

A mount reads an ISO in thousands of ranges, and each answer of assisted-service may carry a fresh token.
So an answer is stored and served until another one differs in more than that:

    within the TTL of the last validation    assisted-service is not asked
    then                                      it is asked once; after a second of waiting, the snapshot
      unchanged                               the snapshot stays
      changed, or too old for new mounts      a new generation; older ones only for mounts in progress
      401, 403, 404                           the end of all generations, at once
      failed                                  the snapshot, for a grace

A snapshot is stored before anyone is served from it, so a restart continues with it.

Processes that share the repository ask one at a time, and read it first: one answer serves all of them.
`cache.SnapshotCache` lets them see each other's changes at once.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from image_service.concurrency.negative_cache import NegativeCache
from image_service.concurrency.single_flight import SingleFlight
from image_service.errors import (
    Forbidden,
    ImageServiceError,
    NotFound,
    Unauthorized,
    UpstreamQueueFull,
    UpstreamTimeout,
)
from image_service.snapshots.model import FAILURES, SnapshotEvent, VersionLost
from image_service.snapshots.snapshot_cache import SnapshotCache

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.coordination import Coordination
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials, Kind
    from image_service.settings.upstream import SnapshotSettings
    from image_service.snapshots.model import CacheEntry, Snapshot, SnapshotKey
    from image_service.snapshots.sealed_repository import SealedRepository

_log = Logger()

MAX_ASKING = 4096
"""Keys that are asked for the first time at once; beyond that is more than can be answered in time."""
REVALIDATION_TIMEOUT_SECONDS = 1.0
"""How long requests wait for a revalidation, from its start, before they are served the snapshot."""

_ENDING = (Unauthorized, Forbidden, NotFound)


class Fetch(Protocol):
    """Asks assisted-service for all that makes an infra-env's image of one kind (see ``AssistedApi``)."""

    def __call__(
        self, infra_env_id: str, kind: Kind, credentials: Credentials | None, /, *, is_revalidation: bool
    ) -> Awaitable[Customization]:
        """Return a Deferred or a coroutine."""


class Snapshots:
    """Gets snapshots, and validates them. Credentials are always those of the key."""

    def __init__(  # noqa: PLR0913 - each a part that tests replace
        self,
        fetch: Fetch,
        repository: SealedRepository,
        clock: IReactorTime,
        coordination: Coordination,
        settings: SnapshotSettings,
        *,
        count: Callable[[SnapshotEvent], None] = lambda _: None,
    ) -> None:
        self._fetch = fetch
        self._repository = repository
        self._clock = clock
        self._coordination = coordination
        self._settings = settings
        self._count = count
        self._cache = SnapshotCache(repository, clock, coordination)
        self._absences: NegativeCache[SnapshotKey] = NegativeCache(clock)
        self._first: SingleFlight[SnapshotKey, CacheEntry] = SingleFlight(MAX_ASKING)
        self._revalidations: SingleFlight[SnapshotKey, None] = SingleFlight()

    @property
    def in_grace(self) -> int:
        """The number of snapshots that are served although they could not be validated."""
        started_after = self._clock.seconds() - self._settings.grace_seconds
        failing = [entry.failing_since for entry in self._cache.current_entries()]
        return sum(since is not None and since > started_after for since in failing)

    def get_cached_snapshot(self, key: SnapshotKey) -> Snapshot | None:
        """Return the newest snapshot if it may be given to any mount without waiting; else `get` it."""
        entry = self._cache.get_cached_entry(key)
        if entry is None or entry.refusal is not None or self._is_due(entry):
            return None
        self.record_hit()
        return entry.snapshot

    async def get(self, key: SnapshotKey, credentials: Credentials | None) -> Snapshot:
        """Return the newest snapshot, for a new mount: it is not too old for one.

        Raises:
            ImageServiceError: there is none, and none could be had.
        """
        entry = await self._entry(key, credentials)
        if entry.refusal is not None or self._is_due(entry):
            await self._validate(entry, credentials, may_serve_old=not self._is_old(entry.snapshot))
            entry = await self._entry(key, credentials)
        if entry.refusal is not None:
            raise entry.refusal.copy()
        if self._is_old(entry.snapshot):
            too_slow = "assisted-service did not answer in time; it is still being asked"
            raise entry.error.copy() if entry.error else UpstreamTimeout(too_slow, retry_after_seconds=1)
        return entry.snapshot

    async def revalidate(self, snapshot: Snapshot, credentials: Credentials | None) -> None:
        """Return if a mount in progress may continue with its snapshot.

        Raises:
            ImageServiceError: it may not, or assisted-service has failed for too long.
        """
        entry = await self._entry(snapshot.key, credentials)
        if snapshot.entry is not entry and not snapshot.is_ended:
            await self._cache.reattach(entry, snapshot, credentials)
        if not self._is_fresh(entry):
            await self._validate(entry, credentials)
            await self._entry(snapshot.key, credentials)  # raises the reason, if that was the end
        if snapshot.is_ended:
            raise VersionLost

    def valid_until(self, snapshot: Snapshot) -> float:
        """Return until when ``revalidate`` returns at once, or -inf, unless it ends or its key is bumped."""
        entry = self._cache.get_cached_entry(snapshot.key)
        if entry is None or snapshot.entry is not entry or not self._cache.is_current(entry):
            return -inf
        return entry.validated_at + self._settings.ttl_seconds

    def newest_until(self, snapshot: Snapshot) -> float:
        """Return until when ``get`` returns this at once, unless it ends or its key is bumped."""
        return min(self.valid_until(snapshot), snapshot.taken_at + self._settings.max_age_seconds)

    def watch(self, snapshot: Snapshot) -> Callable[[], bool]:
        """Return a cheap function: True while no other process changes the snapshot."""
        return self._coordination.watch(snapshot.stored_key)

    def record_hit(self) -> None:
        """Record that a request was served without asking assisted-service."""
        self._count(SnapshotEvent.HIT)

    async def load(self, snapshot: Snapshot, credentials: Credentials | None) -> Customization | None:
        """Return the answer that a snapshot pins; None: it is lost, and ``get`` will ask again."""
        found = await self._repository.load(snapshot, credentials)
        if found is None:
            snapshot.taken_at = -inf
        return found

    async def find_generation(
        self, key: SnapshotKey, credentials: Credentials | None, generation: int
    ) -> Snapshot | None:
        """Return the generation that a mount read before this process started; None: it is lost.

        Raises:
            ImageServiceError: assisted-service refuses what the key asks.
        """
        return await self._cache.find_generation(await self._entry(key, credentials), generation, credentials)

    def stored_key_of(self, key: SnapshotKey, credentials: Credentials | None) -> bytes:
        """Return what stands for a key in the repository, and in stored mounts."""
        return self._repository.key_of(key, credentials)

    # Validation.

    def _is_due(self, entry: CacheEntry) -> bool:
        """Return True if the entry is to be validated before a new mount gets its snapshot."""
        return not self._is_fresh(entry) or self._is_old(entry.snapshot)

    def _is_fresh(self, entry: CacheEntry) -> bool:
        now, since = self._clock.seconds(), entry.validated_at
        return since <= now < since + self._settings.ttl_seconds and self._cache.is_current(entry)

    def _is_old(self, snapshot: Snapshot) -> bool:
        return self._clock.seconds() >= snapshot.taken_at + self._settings.max_age_seconds

    async def _validate(
        self, entry: CacheEntry, credentials: Credentials | None, *, may_serve_old: bool = True
    ) -> None:
        """Ask again, once for all requests that wait; one that waits too long is served the snapshot."""
        now = self._clock.seconds()
        if now >= entry.retry_at:
            since = now if entry.revalidating_since is None else entry.revalidating_since
            timeout = since + REVALIDATION_TIMEOUT_SECONDS - now
            if timeout > 0 or not may_serve_old:
                key = entry.snapshot.key
                answer = self._revalidations.join(key, lambda: self._revalidate(entry, credentials))
                if may_serve_old:
                    answer.addTimeout(timeout, self._clock, lambda *_: None)
                await answer
        if entry.failing_since is None or entry.error is None or entry.is_ended:
            return
        if self._clock.seconds() >= entry.failing_since + self._settings.grace_seconds:
            raise entry.error.copy()
        self._count(SnapshotEvent.GRACE)

    async def _revalidate(self, entry: CacheEntry, credentials: Credentials | None) -> None:
        entry.revalidating_since = self._clock.seconds()
        try:
            async with self._coordination.lock(entry.snapshot.stored_key):
                current = await self._cache.refresh(entry, credentials)
                if current is not None and self._is_due(current):
                    await self._ask_again(current, credentials)
        finally:
            entry.revalidating_since = None

    async def _ask_again(self, entry: CacheEntry, credentials: Credentials | None) -> None:
        key = entry.snapshot.key
        try:
            customization = await self._ask(key, credentials, is_revalidation=True)
            await self._accept(entry, customization, credentials)
        except _ENDING:
            self._count(SnapshotEvent.ENDED)
            await self._cache.end(entry)
            raise
        except UpstreamQueueFull:
            raise  # nothing was asked, so nothing is known to fail
        except FAILURES as error:
            self._record_failure(entry, error)
        except ImageServiceError as error:
            entry.record_refusal(error, self._clock.seconds())
            self._cache.announce(entry)
        except Exception:  # noqa: BLE001 - whatever it is, it is no reason to abort mounts
            _log.failure(
                "unexpected error while validating infra-env {infra_env}", infra_env=key.infra_env_id
            )
            self._record_failure(entry, ImageServiceError("the answer of assisted-service cannot be used"))

    async def _accept(
        self, entry: CacheEntry, customization: Customization, credentials: Credentials | None
    ) -> None:
        snapshot = entry.snapshot
        is_same = await self._repository.is_same(snapshot, customization, credentials)
        entry.record_answer()
        if is_same and not self._is_old(snapshot):
            self._count(SnapshotEvent.UNCHANGED)
            entry.validated_at = self._clock.seconds()
            await self._repository.record_validation(snapshot, credentials, entry.validated_at)
            self._cache.announce(entry)
            return
        self._count(SnapshotEvent.CHANGED)
        now = self._clock.seconds()
        renewed = await self._store(snapshot.key, customization, credentials, snapshot.generation)
        self._cache.supersede(entry, renewed, now)

    def _record_failure(self, entry: CacheEntry, error: ImageServiceError) -> None:
        if entry.failing_since is None:
            _log.warn(
                "cannot validate infra-env {infra_env}, serving its last snapshot: {detail}",
                infra_env=entry.snapshot.key.infra_env_id,
                detail=error.detail,
            )
        self._count(SnapshotEvent.FAILED)
        entry.record_failure(error, self._clock.seconds())

    # The first answer.

    async def _entry(self, key: SnapshotKey, credentials: Credentials | None) -> CacheEntry:
        entry = await self._cache.get(key, credentials)
        if entry is None:
            self._absences.check_absence(key)
            return await self._first.join(key, lambda: self._load_or_ask(key, credentials))
        return entry

    async def _load_or_ask(self, key: SnapshotKey, credentials: Credentials | None) -> CacheEntry:
        stored_key = self._repository.key_of(key, credentials)
        version = self._coordination.counter(stored_key)
        entry = await self._cache.load(key, stored_key, credentials)
        if entry is not None:
            return entry
        async with self._coordination.lock(stored_key):
            if self._coordination.counter(stored_key) != version:  # another process has stored something
                entry = await self._cache.load(key, stored_key, credentials)
                if entry is not None:
                    return entry
            self._count(SnapshotEvent.MISS)
            customization = await self._ask(key, credentials, is_revalidation=False)
            now = self._clock.seconds()
            return self._cache.add(await self._store(key, customization, credentials, 0), now)

    async def _store(
        self, key: SnapshotKey, customization: Customization, credentials: Credentials | None, after: int
    ) -> Snapshot:
        now = self._clock.seconds()
        snapshot = await self._repository.add(key, credentials, customization, after=after, at=now)
        if self._is_old(snapshot):  # another process's, of an equal answer long ago
            after = snapshot.generation
            snapshot = await self._repository.add(key, credentials, customization, after=after, at=now)
        return snapshot

    async def _ask(
        self, key: SnapshotKey, credentials: Credentials | None, *, is_revalidation: bool
    ) -> Customization:
        """Ask assisted-service; a 404 is remembered for a moment."""
        try:
            return await self._fetch(key.infra_env_id, key.kind, credentials, is_revalidation=is_revalidation)
        except NotFound as error:
            self._absences.add_absence(key, error)
            raise
