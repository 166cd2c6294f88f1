"""Snapshots: answers of assisted-service about an infra-env, pinned, so that a mount gets bytes of one image.

A mount reads an ISO in thousands of ranges, and each answer of assisted-service may carry a fresh token.
So an answer is stored and served until another one differs in more than that:

    within the TTL of the last validation    assisted-service is not asked
    then                                      it is asked once; after a second of waiting, the snapshot
      unchanged                               the snapshot stays
      changed, or too old for new mounts      a new generation; older ones only for mounts in progress
      refused                                 nothing is served until the answer is unchanged again
      failed                                  the snapshot, for a grace

`cache.validation` says which answer is which.

A snapshot is stored before anyone is served from it, so a restart continues with it.

Processes that share the repository ask one at a time, and read it first: one answer serves all of them.
`cache.SnapshotCache` lets them see each other's changes at once.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredList

from image_service.common.concurrency.negative_cache import NegativeCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import ImageServiceError, Unavailable, UpstreamTimeout
from image_service.server.snapshots.cache.snapshot_cache import SnapshotCache
from image_service.server.snapshots.cache.validation import Validator
from image_service.server.snapshots.storage.snapshot import Question, SnapshotEvent, VersionLost
from image_service.server.snapshots.storage.validity import FAILURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.images.customization import Customization
    from image_service.core.images.reference import Credentials
    from image_service.server.snapshots.cache.cache_entry import CacheEntry
    from image_service.server.snapshots.cache.validation import Fetch
    from image_service.server.snapshots.storage.sealed_repository import SealedRepository
    from image_service.server.snapshots.storage.shared_layouts import SharedLayouts
    from image_service.server.snapshots.storage.snapshot import Snapshot, SnapshotKey
    from image_service.settings.upstream import SnapshotSettings

MAX_ASKING = 4096
"""Keys that are asked for the first time at once; beyond that is more than can be answered in time."""


class Snapshots:
    """Gets snapshots, validated. Credentials are always those that a snapshot was asked with."""

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
        self.cache = SnapshotCache(repository, clock, coordination)
        self._validator = Validator(
            fetch, repository, self.cache, clock, coordination=coordination, settings=settings, count=count
        )
        self.refusals: NegativeCache[SnapshotKey] = NegativeCache(clock)
        self._first: SingleFlight[SnapshotKey, CacheEntry] = SingleFlight(MAX_ASKING)

    @property
    def layouts(self) -> SharedLayouts:
        """Which layouts the replicas have."""
        return self._repository.layouts

    @property
    def answers_bytes(self) -> int:
        """What answers of assisted-service take in memory."""
        return self._repository.recent_bytes

    @property
    def store_failing(self) -> Mapping[str, bool]:
        """Of each operation on stored snapshots, whether its latest attempt failed."""
        return self._repository.failing

    @property
    def in_grace(self) -> int:
        """The number of snapshots that are served although they could not be validated."""
        started_after = self._clock.seconds() - self._settings.grace_seconds
        failing = [entry.validity.failing_since for entry in self.cache.current_entries()]
        return sum(since is not None and since > started_after for since in failing)

    def get_cached_snapshot(self, key: SnapshotKey) -> Snapshot | None:
        """Return the newest snapshot if it may be given to any mount without waiting; else `get` it."""
        entry = self.cache.get_cached_entry(key)
        if entry is None or self._validator.is_due(entry):
            return None
        if self._repository.is_composed_anew(entry.snapshot):
            return None
        self.record_hit()
        return entry.snapshot

    async def get(self, question: Question) -> Snapshot:
        """Return the newest snapshot, for a new mount: it is not too old for one.

        Raises:
            ImageServiceError: there is none, and none could be had.
        """
        entry = await self._entry(question)
        if self._validator.is_due(entry):
            may_serve_old = not self._validator.is_old(entry.snapshot)
            await self._validator.validate(entry, question.credentials, may_serve_old=may_serve_old)
            entry = await self._entry(question)
            entry.validity.check_refusal()
        if self._validator.is_old(entry.snapshot):
            too_slow = "assisted-service did not answer in time; it is still being asked"
            error = entry.validity.error
            raise error.copy() if error else UpstreamTimeout(too_slow, retry_after_seconds=1)
        if self._repository.is_composed_anew(entry.snapshot):
            with suppress(Unavailable):  # what is known here is served, if this release can compose it
                await self._validator.recompose(entry)
            entry = await self._entry(question)
            entry.validity.check_refusal()
        return entry.snapshot

    async def revalidate(self, snapshot: Snapshot, credentials: Credentials | None) -> None:
        """Return if a mount in progress may continue with its snapshot.

        Raises:
            ImageServiceError: it may not, or assisted-service has failed for too long.
        """
        entry = await self._entry(Question(snapshot.key.infra_env_id, snapshot.key.kind, credentials))
        if snapshot.validity is not entry.validity and not snapshot.is_ended:
            await self.cache.reattach(entry, snapshot)
        if not self._validator.is_fresh(entry):
            await self._validator.validate(entry, credentials)
        if snapshot.is_ended:
            raise VersionLost

    def valid_until(self, snapshot: Snapshot) -> float:
        """Return until when ``revalidate`` returns at once, or -inf, unless it ends or its key is bumped."""
        entry = self.cache.get_cached_entry(snapshot.key)
        if entry is None or snapshot.validity is not entry.validity or entry.validity.is_refused:
            return -inf
        if not self.cache.is_current(entry):
            return -inf
        return entry.validity.validated_at + self._settings.ttl_seconds

    def newest_until(self, snapshot: Snapshot) -> float:
        """Return until when ``get`` returns this at once, unless it ends or its key is bumped."""
        return min(self.valid_until(snapshot), snapshot.taken_at + self._settings.max_age_seconds)

    def watch(self, snapshot: Snapshot) -> Callable[[], bool]:
        """Return a cheap function: True while no other process changes the snapshot."""
        return self._coordination.watch(snapshot.stored_key)

    def record_hit(self) -> None:
        """Record that a request was served without asking assisted-service."""
        self._count(SnapshotEvent.HIT)

    async def load(self, snapshot: Snapshot) -> Customization | None:
        """Return the answer that a snapshot pins; None: it is lost, and ``get`` will ask again."""
        found = await self._repository.load(snapshot)
        if found is None:
            snapshot.lose()
        return found

    async def find_generation(self, question: Question, generation: int) -> Snapshot | None:
        """Return the generation that a mount read before this process started; None: it is lost.

        Raises:
            ImageServiceError: assisted-service refuses what is asked.
        """
        return await self.cache.find_generation(await self._entry(question), generation)

    async def store_again(self, unstored: Iterable[Snapshot]) -> None:
        """Store newest snapshots that are in memory only: their mounts go on in the next process then."""
        await DeferredList([Deferred.fromCoroutine(self._store_again(snapshot)) for snapshot in unstored])

    async def _store_again(self, snapshot: Snapshot) -> None:
        with suppress(Unavailable):  # of the store; it is tried again later
            await self._validator.store_again(snapshot)

    def stored_key_of(self, question: Question) -> bytes:
        """Return what stands for a question in the repository, and in stored mounts."""
        return self._repository.seal_of(question).key

    # The first answer.

    async def _entry(self, question: Question) -> CacheEntry:
        entry = await self.cache.get(question.key)
        if entry is None:
            self.refusals.check(question.key)
            return await self._first.join(question.key, lambda: self._load_or_ask(question))
        return entry

    async def _load_or_ask(self, question: Question) -> CacheEntry:
        key, seal = question.key, self._repository.seal_of(question)
        version = self._coordination.counter(seal.key)
        entry = await self.cache.load(key, seal)
        if entry is not None:
            return entry
        async with self._coordination.lock(seal.key) as is_held:
            if self._coordination.counter(seal.key) != version:  # another process has stored something
                entry = await self.cache.load(key, seal)
                if entry is not None:
                    return entry
            self._count(SnapshotEvent.MISS)
            try:
                customization = await self._fetch(
                    question.infra_env_id, question.kind, question.credentials, is_revalidation=False
                )
            except ImageServiceError as error:
                if not isinstance(error, FAILURES):
                    self.refusals.add(key, error)
                raise
            if not is_held():  # another process has asked later, and stored its answer
                entry = await self.cache.load(key, seal)
                if entry is not None:
                    return entry
            # From now on, or the answers of a slow assisted-service would be used once each.
            now = self._clock.seconds()
            snapshot = await self._validator.store(key, seal, customization, after=0, at=now)
            return self.cache.add(snapshot, now)
