"""Answers of assisted-service in a repository, sealed with the credentials of the request.

What a repository of this process alone did not take is kept in memory for a while, and asked for again after
that. Nothing is served that replicas share and that their repository did not take.

Stored instants are of the wall clock, all others of the process's monotonic clock: they are converted here.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import SnapshotUnreadable, Unavailable
from image_service.core.images.fingerprint import fingerprint
from image_service.core.images.reference import Kind
from image_service.server.snapshots.storage.codec import (
    decode_customization,
    decode_infra_env,
    encode_customization,
    encode_infra_env,
)
from image_service.server.snapshots.storage.repository_access import RepositoryAccess
from image_service.server.snapshots.storage.sealed_mounts import SealedMounts
from image_service.server.snapshots.storage.shared_layouts import SharedLayouts
from image_service.server.snapshots.storage.snapshot import Snapshot
from image_service.server.snapshots.storage.stored_time import StoredTime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.images.customization import Customization
    from image_service.core.images.reference import Credentials
    from image_service.server.assisted.responses import InfraEnv
    from image_service.server.snapshots.storage.encryption import Seal, SnapshotCipher
    from image_service.server.snapshots.storage.repository import SnapshotRepository, StoredSnapshot
    from image_service.server.snapshots.storage.snapshot import Question, SnapshotKey

T = TypeVar("T")

_log = Logger()

RECENT_BYTES = 32 * 1024 * 1024
"""Answers kept in clear: the first client to ask for one needs it again at once."""
OVERHEAD_BYTES = 1024
"""What one of them costs beside its bytes, about."""
THREAD_BYTES = 128 * 1024
"""What is larger is encrypted and compared in a thread."""


def first_generation() -> int:
    """Return the number of a new key's first generation, which no other has had: 1 to 2**62."""
    return 1 + secrets.randbits(62)


class SealedRepository:
    """Stores snapshots and infra-envs. Instants are the clock's seconds; minus infinity: never.

    Args:
        clock: monotonic.
        wall_clock: returns seconds since the epoch, which may be wrong, and be set.
        get_base_url: returns the URL by which clients reach the service now.
        clock_error_seconds: None: no other host uses the repository. Else replicas share it, and a stored
            instant may be as far in the future.
    """

    def __init__(  # noqa: PLR0913 - what it accesses, and two clocks
        self,
        repository: SnapshotRepository,
        cipher: SnapshotCipher,
        in_thread: InThread,
        clock: IReactorTime,
        wall_clock: Callable[[], float] = time.time,
        *,
        get_base_url: Callable[[], str | None] = lambda: None,
        clock_error_seconds: float | None = None,
    ) -> None:
        self._repository = repository
        self.cipher = cipher
        self._in_thread = in_thread
        self._clock = clock
        self._is_shared = clock_error_seconds is not None
        self._access = RepositoryAccess(clock, is_shared=self._is_shared)
        self._get_base_url = get_base_url
        self._time = StoredTime(clock, wall_clock, clock_error_seconds or 0.0)
        self.layouts = SharedLayouts()
        self.mounts = SealedMounts(repository, self._access, self._time, lambda: self.cipher)
        self._offset_at_cleanup = self._time.offset()
        self._no_cleanup_until = -inf
        self._recent: LruCache[tuple[bytes, int], Customization] = LruCache(
            RECENT_BYTES, lambda customization: _size(customization) + OVERHEAD_BYTES
        )

    @property
    def failing(self) -> Mapping[str, bool]:
        """Of each of `STORE_OPERATIONS`, whether it has failed and not succeeded since."""
        return self._access.failing

    @property
    def recent_bytes(self) -> int:
        """What answers in clear take in memory."""
        return self._recent.held_bytes

    def seal_of(self, question: Question) -> Seal:
        """Return what stands for a question, and its credentials, in the repository."""
        return self.cipher.seal_of(question.infra_env_id, question.kind.value, question.credentials)

    def seal_of_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> Seal:
        """Return what stands for an infra-env, and for the credentials, in the repository."""
        return self.cipher.seal_of(infra_env_id, "infra-env", credentials)

    # Snapshots.

    async def find_newest(self, stored_key: bytes) -> StoredSnapshot | None:
        """Return the state of a key's newest snapshot, which may be refused; ``taken_at`` is as stored."""
        stored = await self._access.read(self._repository.find_newest(stored_key))
        return stored and attrs.evolve(stored, validated_at=self._time.to_monotonic(stored.validated_at))

    async def load_newest(self, key: SnapshotKey, seal: Seal) -> tuple[Snapshot, StoredSnapshot] | None:
        """Return the newest snapshot, and its state as ``find_newest`` returns it."""
        stored = await self.find_newest(seal.key)
        if stored is None:
            return None
        if stored.is_refused:  # and has ended if the repository has no payload, whatever is in memory
            self._recent.pop((seal.key, stored.generation))
        taken_at = self._time.to_monotonic(stored.taken_at)
        snapshot = Snapshot(key, seal, stored.generation, taken_at, stored.taken_at, stored.layout)
        customization = await self.load(snapshot)
        if customization is None:
            return None
        snapshot.base_url = customization.base_url
        return snapshot, stored

    def has_present_url(self, snapshot: Snapshot) -> bool:
        """Return True if the newest snapshot of a key has the base URL that a new one would have."""
        return snapshot.base_url == self._pinned_url(snapshot.key)

    def is_composed_anew(self, snapshot: Snapshot) -> bool:
        """Return True if new mounts need the same answer in another snapshot.

        Not all replicas have its layout, or it has another base URL. Replicas may have different base URLs
        while an update changes them, so they replace it only when it is validated, not each of them in turn.
        """
        return not self.layouts.all_have(snapshot.layout) or not (
            self._is_shared or self.has_present_url(snapshot)
        )

    def _pinned_url(self, key: SnapshotKey) -> str | None:
        """Return the base URL that a new snapshot gets; None: no image that is made of it has one."""
        return self._get_base_url() if key.kind is Kind.MINIMAL_ISO else None

    async def find_layout(self, stored_key: bytes, generation: int) -> int | None:
        """Return the layout of a generation; None: it is not stored any more, or cannot be read."""
        return await self._access.read(self._repository.find_layout(stored_key, generation))

    async def has_ended(self, snapshot: Snapshot) -> bool:
        """Return True if all generations up to a snapshot have ended; also if that cannot be read."""
        ended = self._repository.has_ended(snapshot.stored_key, snapshot.generation)
        return await self._access.read(ended) is not False

    async def load(self, snapshot: Snapshot) -> Customization | None:
        """Return the answer that a snapshot pins; None: it is not stored any more."""
        recent = snapshot.stored_key, snapshot.generation
        found = self._recent.get(recent)
        if found is None:
            found = await self._load("snapshot", snapshot.seal, snapshot.generation, decode_customization)
            if found is not None:
                self._recent[recent] = found
        return found

    async def add(
        self, key: SnapshotKey, seal: Seal, customization: Customization, *, after: int, at: float
    ) -> Snapshot:
        """Store a new generation, unless another process has just stored an equal or a later answer.

        Args:
            after: the newest generation that is known.
            at: when it was answered.

        Returns:
            the snapshot to be served from now on: of this answer, or the other process's.

        Raises:
            Unavailable: replicas share the repository, which did not take it.
        """
        generation = after + 1 if after > 0 else first_generation()
        stored_at = self._time.to_stored(at)
        base_url = self._pinned_url(key)
        customization = attrs.evolve(customization, base_url=base_url)
        snapshot = Snapshot(key, seal, generation, at, stored_at, self.layouts.common, base_url)
        is_stored = await self._put(snapshot, customization)
        if is_stored is False:
            found = await self.load_newest(key, seal)
            is_later = found is not None and at < found[0].taken_at and not found[1].is_refused
            if found is not None and (is_later or await self.is_same(found[0], customization)):
                return found[0]
            stored = await self.find_newest(seal.key)
            if stored is not None:
                after = max(stored.generation, generation)
                return await self.add(key, seal, customization, after=after, at=at)
        if not is_stored:
            # No other has this number, not even one that the repository may have by the one above.
            snapshot.renumber(-1 - secrets.randbits(62))
            snapshot.fingerprint = await self._fingerprint(customization)  # while the answer is here
        self._recent[seal.key, snapshot.generation] = customization
        return snapshot

    async def is_same(self, snapshot: Snapshot, customization: Customization) -> bool:
        """Return True if an answer equals a snapshot's but for its tokens; False if that is lost.

        A snapshot's fingerprint is made here and not before: most are never compared with anything.
        """
        if snapshot.fingerprint is None:
            stored = await self.load(snapshot)
            snapshot.fingerprint = None if stored is None else await self._fingerprint(stored)
        return snapshot.fingerprint == await self._fingerprint(customization)

    async def record_validation(self, snapshot: Snapshot, at: float) -> None:
        """Record an equal answer of assisted-service, so that a restart need not ask.

        A snapshot that is in memory only, because storing it failed or others needed its room, is stored now.
        """
        key, generation = snapshot.stored_key, snapshot.generation
        if generation > 0:
            recorded = await self._access.write(
                self._repository.record_validation(key, generation, self._time.to_stored(at))
            )
            if recorded is not False:
                return
        pinned = self._recent.peek((key, generation))
        number = None if pinned is None else await self._store_again(snapshot, pinned)
        if pinned is not None and number is not None:
            self._recent.pop((key, generation))
            self._recent[key, number] = pinned
            snapshot.renumber(number)
            await self._access.write(
                self._repository.record_validation(key, number, self._time.to_stored(at))
            )

    async def _store_again(self, snapshot: Snapshot, pinned: Customization) -> int | None:
        """Store a snapshot that is in memory only; return its number, or None if it was not stored."""
        number = snapshot.generation
        if number < 0:
            newest = await self.find_newest(snapshot.stored_key)
            number = 1 + newest.generation if newest else first_generation()
            if newest is not None:
                stored = attrs.evolve(snapshot, generation=newest.generation)
                is_same_layout = newest.layout == snapshot.layout
                if is_same_layout and await self.load(stored) == pinned:
                    return newest.generation  # by a write that took too long
        again = attrs.evolve(snapshot, generation=number)
        return number if await self._put(again, pinned) else None

    async def record_refusal(self, snapshot: Snapshot) -> None:
        """Record that assisted-service refuses it to its credentials.

        Its payload stays: only these credentials open it, and it is served only after assisted-service has
        given an equal answer to them.
        """
        await self._access.write(self._repository.record_refusal(snapshot.stored_key, snapshot.generation))

    async def end(self, snapshot: Snapshot, at: float) -> None:
        """Remove all generations of a key: these credentials may not see them any more.

        Raises:
            Unavailable: replicas share the repository, which goes on to have them.
        """
        self.forget(snapshot)
        await self._access.write(
            self._repository.end(snapshot.stored_key, self._time.to_stored(at)), is_required=True
        )

    def forget(self, snapshot: Snapshot) -> None:
        """Drop all generations of a key from memory: another process has removed them."""
        for recent in [recent for recent in self._recent if recent[0] == snapshot.stored_key]:
            self._recent.pop(recent)

    async def remove_unused(self, unused_seconds: float) -> None:
        """Remove what has not been used for so long; is called periodically.

        After a step of the wall clock that makes everything look unused, nothing is removed for that time.
        """
        now, offset = self._clock.seconds(), self._time.offset()
        if offset - self._offset_at_cleanup > unused_seconds / 2:
            self._no_cleanup_until = now + unused_seconds
        self._offset_at_cleanup = offset
        if now < self._no_cleanup_until:
            return
        unused_since = self._time.wall_clock() - unused_seconds
        removed = await self._access.write(self._repository.remove_unused(unused_since, self._time.latest()))
        if removed:
            _log.info("removed {count} unused snapshots", count=removed)

    # Infra-envs.

    async def load_infra_env(self, seal: Seal) -> tuple[InfraEnv, float] | None:
        """Return an infra-env without its kernel arguments, and when it was fetched.

        None: it is not there, or cannot be read; it is not pinned, so each replica may ask for it.
        """
        with suppress(Unavailable):
            stored = await self.find_newest(seal.key)
            if stored is not None:
                found = await self._load("infra-env", seal, stored.generation, decode_infra_env)
                return None if found is None else (found, stored.validated_at)
        return None

    async def save_infra_env(self, seal: Seal, infra_env: InfraEnv, at: float) -> None:
        """Store an infra-env without its kernel arguments, if possible; a change is a new generation."""
        payload, stored_at = encode_infra_env(infra_env), self._time.to_stored(at)
        try:
            newest = await self.find_newest(seal.key)
        except Unavailable:
            return
        stored = await self.load_infra_env(seal)
        if newest and stored and encode_infra_env(stored[0]) == payload:
            await self._access.write(
                self._repository.record_validation(seal.key, newest.generation, stored_at)
            )
            return
        generation = 1 + newest.generation if newest else first_generation()
        sealed = seal.seal(generation, payload)
        await self._access.write(self._repository.add(seal.key, generation, sealed, stored_at, seal.owner))

    # Payloads.

    async def _load(self, name: str, seal: Seal, generation: int, decode: Callable[[bytes], T]) -> T | None:
        """Return a stored payload; None: it is not stored any more, or unreadable."""
        sealed = await self._access.read(self._repository.load(seal.key, generation))
        if sealed is None:
            return None
        try:
            return await self._run(len(sealed), lambda: decode(seal.unseal(generation, sealed)))
        except SnapshotUnreadable as error:
            _log.warn("cannot read a stored {name}: {detail}", name=name, detail=error.detail)
            return None

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        return await self._in_thread(work) if size > THREAD_BYTES else work()

    async def _put(self, snapshot: Snapshot, customization: Customization) -> bool | None:
        """Return True if it is stored, False if there is a newer one, None if the repository failed."""
        seal, generation = snapshot.seal, snapshot.generation
        sealed = await self._run(
            _size(customization), lambda: seal.seal(generation, encode_customization(customization))
        )
        added = self._repository.add(
            seal.key, generation, sealed, snapshot.stored_at, seal.owner, layout=snapshot.layout
        )
        return await self._access.write(added, is_required=True)

    async def _fingerprint(self, customization: Customization) -> bytes:
        work = partial(fingerprint, customization)
        if customization.ramdisk is not None:  # of a few bytes, it may unpack to many
            return await self._in_thread(work)
        return await self._run(_size(customization), work)


def _size(customization: Customization) -> int:
    arguments = sum(len(argument.value) for argument in customization.kernel_arguments)
    return len(customization.ignition) + len(customization.ramdisk or b"") + arguments
