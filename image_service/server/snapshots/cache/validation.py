"""Validation: what is pinned is compared with what assisted-service answers now.

    an equal answer but for tokens   unchanged: served for another TTL
    an answer that is not equal      changed: a new generation; older ones for mounts in progress
    3xx, all other 4xx, a config     refused: nothing is served until an answer is equal again; if one is not
      that is not Ignition's           equal instead, mounts in progress are lost
    408, 425, 429, 5xx, other 2xx,   failed: served for the grace, from the start of the first failed call on
      no answer, an unreadable one
    no call slot in time             not asked: served for 30 s after the TTL, then 503, unless the grace has
      begun before

A request waits a second, then it is served what is pinned, for 30 s while the answer is late; but not if it
is refused. So a credential that was revoked is good for at most

    SNAPSHOT_TTL and 30 s               if assisted-service answers, or is not asked
    SNAPSHOT_TTL, 30 s, SNAPSHOT_GRACE  if it fails, the 30 s only if there was no call slot before
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from twisted.internet.defer import CancelledError, DeferredLock
from twisted.logger import Logger

from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import ImageServiceError, UpstreamQueueFull
from image_service.server.snapshots.storage.snapshot import SnapshotEvent
from image_service.server.snapshots.storage.validity import FAILURES, RETRY_SECONDS, ValidityState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.images.customization import Customization
    from image_service.core.images.reference import Credentials, Kind
    from image_service.server.snapshots.cache.cache_entry import CacheEntry
    from image_service.server.snapshots.cache.snapshot_cache import SnapshotCache
    from image_service.server.snapshots.storage.encryption import Seal
    from image_service.server.snapshots.storage.sealed_repository import SealedRepository
    from image_service.server.snapshots.storage.snapshot import Snapshot, SnapshotKey
    from image_service.settings.upstream import SnapshotSettings

_log = Logger()

REVALIDATION_TIMEOUT_SECONDS = 1.0
"""How long requests wait for a revalidation, from its start, before they are served the snapshot."""
LATE_SECONDS = 30.0
"""For how long they are, from its start on, if it has not ended; then they wait for its end. If there is no
call slot, this time begins when the TTL has passed."""


class Fetch(Protocol):
    """Asks assisted-service for all that makes an infra-env's image of one kind (see ``AssistedApi``)."""

    def __call__(
        self, infra_env_id: str, kind: Kind, credentials: Credentials | None, /, *, is_revalidation: bool
    ) -> Awaitable[Customization]:
        """Return a Deferred or a coroutine."""


class Validator:
    """Validates cache entries. Credentials are always those of their keys."""

    def __init__(  # noqa: PLR0913 - what validation needs of others
        self,
        fetch: Fetch,
        repository: SealedRepository,
        cache: SnapshotCache,
        clock: IReactorTime,
        *,
        coordination: Coordination,
        settings: SnapshotSettings,
        count: Callable[[SnapshotEvent], None],
    ) -> None:
        self._fetch = fetch
        self._repository = repository
        self._cache = cache
        self._clock = clock
        self._coordination = coordination
        self._settings = settings
        self._count = count
        self._revalidations: SingleFlight[SnapshotKey, None] = SingleFlight()
        self._recomposing: SingleFlight[SnapshotKey, None] = SingleFlight()
        # `store_again` must not write an old snapshot after `_accept` has written its successor. With one
        # process, the lock of `Coordination` excludes nobody.
        self._storing: WeakValueDictionary[SnapshotKey, DeferredLock] = WeakValueDictionary()

    def is_due(self, entry: CacheEntry) -> bool:
        """Return True if the entry is to be validated before a new mount gets its snapshot."""
        return not self.is_fresh(entry) or self.is_old(entry.snapshot)

    def is_fresh(self, entry: CacheEntry) -> bool:
        """Return True if mounts in progress may go on without asking."""
        now, since = self._clock.seconds(), entry.validity.validated_at
        is_within_ttl = since <= now < since + self._settings.ttl_seconds
        return is_within_ttl and not entry.validity.is_refused and self._cache.is_current(entry)

    def _is_good_unasked(self, entry: CacheEntry) -> bool:
        """Return True if the snapshot may be served although there is no call slot to ask again."""
        late_at = entry.validity.validated_at + self._settings.ttl_seconds + LATE_SECONDS
        return not entry.validity.is_refused and self._clock.seconds() < late_at

    def is_old(self, snapshot: Snapshot) -> bool:
        """Return True if the snapshot is too old for new mounts."""
        now, since = self._clock.seconds(), snapshot.taken_at
        return not since <= now < since + self._settings.max_age_seconds

    async def validate(
        self, entry: CacheEntry, credentials: Credentials | None, *, may_serve_old: bool = True
    ) -> None:
        """Ask again, once for all requests that wait; one that waits too long is served the snapshot.

        Raises:
            ImageServiceError: nothing may be served now.
        """
        validity, now = entry.validity, self._clock.seconds()
        is_good = may_serve_old and self._is_good_unasked(entry)
        if now >= validity.retry_at or (validity.state is ValidityState.NO_SLOT and not is_good):
            try:
                await self._wait(entry, credentials, now, may_serve_old=may_serve_old)
            except UpstreamQueueFull:
                if validity.failing_since is None and not (may_serve_old and self._is_good_unasked(entry)):
                    raise
        if validity.is_ended:  # there is another one
            return
        validity.check_refusal()
        if validity.failing_since is not None and validity.error is not None:
            if self._clock.seconds() >= validity.failing_since + self._settings.grace_seconds:
                raise validity.error.copy()
            self._count(SnapshotEvent.GRACE)

    async def recompose(self, entry: CacheEntry) -> None:
        """Store the newest snapshot again, so that new mounts can have it; others keep theirs."""
        await self._recomposing.join(entry.snapshot.key, lambda: self._recompose(entry))

    async def store_again(self, snapshot: Snapshot) -> None:
        """Store a snapshot that is in memory only, if it is the newest of its key and not refused."""
        async with self._coordination.lock(snapshot.stored_key), self._storing_lock(snapshot.key):
            cached = self._cache.get_cached_entry(snapshot.key)
            entry = None if cached is None else await self._cache.refresh(cached)
            if entry is None or entry.snapshot is not snapshot or entry.validity.is_refused:
                return
            validity = entry.validity
            await self._repository.record_validation(snapshot, validity.validated_at)
            if validity.is_refused:  # since then; there was no row yet that could be marked
                await self._repository.record_refusal(snapshot)
            self._cache.announce(entry)

    async def _recompose(self, entry: CacheEntry) -> None:
        key = entry.snapshot.key
        async with self._coordination.lock(entry.snapshot.stored_key), self._storing_lock(key):
            current = await self._cache.refresh(entry)
            if current is None or not self._repository.is_composed_anew(current.snapshot):
                return
            snapshot = current.snapshot
            customization = await self._repository.load(snapshot)
            if customization is None:
                return
            again = await self._repository.add(
                snapshot.key, snapshot.seal, customization, after=snapshot.generation, at=snapshot.taken_at
            )
            await self._repository.record_validation(again, current.validity.validated_at)
            self._cache.replace(current, again)

    async def _wait(
        self, entry: CacheEntry, credentials: Credentials | None, now: float, *, may_serve_old: bool
    ) -> None:
        validity = entry.validity
        since = now if validity.asking_since is None else validity.asking_since
        match validity.state:
            case ValidityState.VALIDATED:
                may_serve_old = may_serve_old and now < since + LATE_SECONDS
            case ValidityState.NO_SLOT:
                may_serve_old = may_serve_old and self._is_good_unasked(entry)
            case ValidityState.REFUSED | ValidityState.ENDED:
                may_serve_old = False
            case ValidityState.FAILING:
                pass  # for the grace
        timeout = since + REVALIDATION_TIMEOUT_SECONDS - now
        if timeout <= 0 and may_serve_old:
            return
        answer = self._revalidations.join(entry.snapshot.key, lambda: self._revalidate(entry, credentials))
        if may_serve_old:
            answer.addTimeout(timeout, self._clock, lambda *_: None)
        await answer

    async def _revalidate(self, entry: CacheEntry, credentials: Credentials | None) -> None:
        started_at = self._clock.seconds()
        entry.validity.begin_asking(started_at)
        try:
            async with self._coordination.lock(entry.snapshot.stored_key) as is_held:
                current = await self._cache.refresh(entry)
                if current is not None and self.is_due(current):
                    await self._ask_again(current, credentials, started_at, is_held)
        finally:
            entry.validity.end_asking()

    async def _ask_again(
        self,
        entry: CacheEntry,
        credentials: Credentials | None,
        started_at: float,
        is_held: Callable[[], bool],
    ) -> None:
        key, asked_at = entry.snapshot.key, self._clock.seconds()
        try:
            customization = await self._fetch(key.infra_env_id, key.kind, credentials, is_revalidation=True)
            if is_held():  # else another process has asked later, and stored its answer
                async with self._storing_lock(key):
                    await self._accept(entry, customization, asked_at)
        except UpstreamQueueFull:
            entry.validity.record_no_slot(self._clock.seconds())
            raise
        except FAILURES as error:
            self._record_failure(entry, error, started_at)
        except ImageServiceError as error:
            if is_held():
                self._count(SnapshotEvent.REFUSED)
                await self._cache.refuse(entry, error)
        except CancelledError:  # the service stops
            raise
        except Exception:  # noqa: BLE001 - whatever it is, it is no reason to abort mounts
            _log.failure(
                "unexpected error while validating infra-env {infra_env}", infra_env=key.infra_env_id
            )
            unexpected = ImageServiceError("the answer of assisted-service cannot be used")
            self._record_failure(entry, unexpected, started_at)

    async def _accept(self, entry: CacheEntry, customization: Customization, asked_at: float) -> None:
        snapshot = entry.snapshot
        is_same = await self._repository.is_same(snapshot, customization)
        if is_same and not self.is_old(snapshot) and self._repository.has_present_url(snapshot):
            self._count(SnapshotEvent.UNCHANGED)
            entry.validity.record_answer(asked_at)
            await self._repository.record_validation(snapshot, asked_at)
            self._cache.announce(entry)
            return
        self._count(SnapshotEvent.CHANGED)
        must_end = entry.validity.is_refused and not is_same
        if must_end:
            await self._cache.end(entry)
        after = snapshot.generation
        renewed = await self.store(snapshot.key, snapshot.seal, customization, after=after, at=asked_at)
        if must_end:
            self._cache.add(renewed, asked_at)
        else:
            self._cache.supersede(entry, renewed, asked_at)

    def _storing_lock(self, key: SnapshotKey) -> DeferredLock:
        return self._storing.setdefault(key, DeferredLock())

    def _record_failure(self, entry: CacheEntry, error: ImageServiceError, started_at: float) -> None:
        if entry.validity.failing_since is None and not entry.validity.is_refused:
            _log.info(
                "cannot validate infra-env {infra_env}, serving its last snapshot: {detail}",
                infra_env=entry.snapshot.key.infra_env_id,
                detail=error.detail,
            )
        self._count(SnapshotEvent.FAILED)
        entry.validity.record_failure(error, started_at, self._clock.seconds() + RETRY_SECONDS)

    async def store(
        self, key: SnapshotKey, seal: Seal, customization: Customization, *, after: int, at: float
    ) -> Snapshot:
        """Store what was answered as the generation after ``after``, unless another process just has."""
        snapshot = await self._repository.add(key, seal, customization, after=after, at=at)
        if self.is_old(snapshot):  # another process's, of an equal answer long ago
            after = snapshot.generation
            snapshot = await self._repository.add(key, seal, customization, after=after, at=at)
        return snapshot
