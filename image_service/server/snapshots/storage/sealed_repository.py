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
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import Unavailable
from image_service.core.images.fingerprint import fingerprint
from image_service.server.snapshots.storage.codec import (
    decode_customization,
    decode_infra_env,
    encode_customization,
    encode_infra_env,
)
from image_service.server.snapshots.storage.model import SharedLayouts, Snapshot
from image_service.server.snapshots.storage.repository_access import RepositoryAccess

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.parts import InThread
    from image_service.core.images.customization import Customization
    from image_service.core.images.reference import Credentials, Reader
    from image_service.server.assisted.responses import InfraEnv
    from image_service.server.snapshots.storage.encryption import SnapshotCipher
    from image_service.server.snapshots.storage.model import SnapshotKey
    from image_service.server.snapshots.storage.repository import SnapshotRepository, StoredSnapshot

RECENT_BYTES = 32 * 1024 * 1024
"""Answers kept in clear: the first client to ask for one needs it again at once."""
OVERHEAD_BYTES = 1024
"""What one of them costs beside its bytes, about."""


def first_generation() -> int:
    """Return the number of a new key's first generation, which no other has had: 1 to 2**62."""
    return 1 + secrets.randbits(62)


class SealedRepository(RepositoryAccess):
    """Stores snapshots, mounts and infra-envs. Instants are the clock's seconds; minus infinity: never."""

    def __init__(  # noqa: PLR0913 - same as its base
        self,
        repository: SnapshotRepository,
        cipher: SnapshotCipher,
        in_thread: InThread,
        clock: IReactorTime,
        wall_clock: Callable[[], float] = time.time,
        *,
        clock_error_seconds: float | None = None,
    ) -> None:
        super().__init__(
            repository, cipher, in_thread, clock, wall_clock, clock_error_seconds=clock_error_seconds
        )
        self.layouts = SharedLayouts()
        self._offset_at_cleanup = self._offset()
        self._no_cleanup_until = -inf
        self._recent: LruCache[tuple[bytes, int], Customization] = LruCache(
            RECENT_BYTES, lambda customization: _size(customization) + OVERHEAD_BYTES
        )

    @property
    def recent_bytes(self) -> int:
        """What answers in clear take in memory."""
        return self._recent.held_bytes

    def key_of(self, key: SnapshotKey, credentials: Credentials | None) -> bytes:
        """Return what stands for a key, and its credentials, in the repository."""
        return self.cipher.key_of(key.infra_env_id, key.kind.value, credentials)

    def key_of_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> bytes:
        """Return what stands for an infra-env, and for the credentials, in the repository."""
        return self.cipher.key_of(infra_env_id, "infra-env", credentials)

    def reader_key_of(self, reader: Reader) -> bytes:
        """Return what stands for a reader in the repository."""
        ref = reader.ref
        if not ref.needs_customization:
            text = f"{ref.artifact.value} {ref.version} {ref.architecture}"
        else:
            kind = ref.kind.value if ref.kind else None
            text = f"{ref.infra_env_id} {ref.version} {ref.architecture} {kind}"
        if reader.pin is not None:
            text += f" {reader.pin.generation} {reader.pin.base_sha256}"
        return self.cipher.reader_key_of(reader.address, reader.credentials, text)

    # Snapshots.

    async def load_newest(
        self, key: SnapshotKey, stored_key: bytes, credentials: Credentials | None
    ) -> tuple[Snapshot, StoredSnapshot] | None:
        """Return the newest snapshot, and its state as ``find_newest`` returns it."""
        stored = await self.find_newest(stored_key)
        if stored is None:
            return None
        if stored.is_refused:  # and has ended if the repository has no payload, whatever is in memory
            self._recent.pop((stored_key, stored.generation))
        taken_at = self._to_monotonic(stored.taken_at)
        snapshot = Snapshot(key, stored_key, stored.generation, taken_at, stored.taken_at, stored.layout)
        is_readable = await self.load(snapshot, credentials) is not None
        return (snapshot, stored) if is_readable else None

    async def find_layout(self, stored_key: bytes, generation: int) -> int | None:
        """Return the layout of a generation; None: it is not stored any more, or cannot be read."""
        return await self._read(self._repository.find_layout(stored_key, generation))

    async def has_ended(self, snapshot: Snapshot) -> bool:
        """Return True if all generations up to a snapshot have ended; also if that cannot be read."""
        ended = self._repository.has_ended(snapshot.stored_key, snapshot.generation)
        return await self._read(ended) is not False

    async def load(self, snapshot: Snapshot, credentials: Credentials | None) -> Customization | None:
        """Return the answer that a snapshot pins; None: it is not stored any more."""
        key, generation = snapshot.stored_key, snapshot.generation
        found = self._recent.get((key, generation))
        if found is None:
            found = await self._load("snapshot", key, generation, credentials, decode_customization)
            if found is not None:
                self._recent[key, generation] = found
        return found

    async def add(
        self,
        key: SnapshotKey,
        credentials: Credentials | None,
        customization: Customization,
        *,
        after: int,
        at: float,
    ) -> Snapshot:
        """Store a new generation, unless another process has just stored an equal or a later answer.

        Args:
            key: the question.
            credentials: the key's.
            customization: the answer.
            after: the newest generation that is known.
            at: when it was answered.

        Returns:
            the snapshot to be served from now on: of this answer, or the other process's.

        Raises:
            Unavailable: replicas share the repository, which did not take it.
        """
        stored_key = self.key_of(key, credentials)
        generation = after + 1 if after > 0 else first_generation()
        snapshot = Snapshot(key, stored_key, generation, at, self._to_wall(at), self.layouts.common)
        is_stored = await self._put(snapshot, customization, credentials)
        if is_stored is False:
            found = await self.load_newest(key, stored_key, credentials)
            is_later = found is not None and at < found[0].taken_at and not found[1].is_refused
            if found is not None and (is_later or await self.is_same(found[0], customization, credentials)):
                return found[0]
            stored = await self.find_newest(stored_key)
            if stored is not None:
                after = max(stored.generation, generation)
                return await self.add(key, credentials, customization, after=after, at=at)
        if not is_stored:
            # No other has this number, not even one that the repository may have by the one above.
            snapshot.generation = -1 - secrets.randbits(62)
            snapshot.fingerprint = await self._fingerprint(customization)  # while the answer is here
        self._recent[stored_key, snapshot.generation] = customization
        return snapshot

    async def is_same(
        self, snapshot: Snapshot, customization: Customization, credentials: Credentials | None
    ) -> bool:
        """Return True if an answer equals a snapshot's but for its tokens; False if that is lost.

        A snapshot's fingerprint is made here and not before: most are never compared with anything.
        """
        if snapshot.fingerprint is None:
            stored = await self.load(snapshot, credentials)
            snapshot.fingerprint = None if stored is None else await self._fingerprint(stored)
        return snapshot.fingerprint == await self._fingerprint(customization)

    async def record_validation(self, snapshot: Snapshot, credentials: Credentials | None, at: float) -> None:
        """Record an equal answer of assisted-service, so that a restart need not ask.

        A snapshot that is in memory only, because storing it failed or others needed its room, is stored now.
        """
        key, generation = snapshot.stored_key, snapshot.generation
        if generation > 0:
            recorded = await self._write(
                self._repository.record_validation(key, generation, self._to_wall(at))
            )
            if recorded is not False:
                return
        pinned = self._recent.peek((key, generation))
        number = None if pinned is None else await self._store_again(snapshot, pinned, credentials)
        if pinned is not None and number is not None:
            self._recent.pop((key, generation))
            self._recent[key, number] = pinned
            snapshot.generation = number
            await self._write(self._repository.record_validation(key, number, self._to_wall(at)))

    async def _store_again(
        self, snapshot: Snapshot, pinned: Customization, credentials: Credentials | None
    ) -> int | None:
        """Store a snapshot that is in memory only; return its number, or None if it was not stored."""
        number = snapshot.generation
        if number < 0:
            newest = await self.find_newest(snapshot.stored_key)
            number = 1 + newest.generation if newest else first_generation()
            if newest is not None:
                stored = attrs.evolve(snapshot, generation=newest.generation)
                is_same_layout = newest.layout == snapshot.layout
                if is_same_layout and await self.load(stored, credentials) == pinned:
                    return newest.generation  # by a write that took too long
        again = attrs.evolve(snapshot, generation=number)
        return number if await self._put(again, pinned, credentials) else None

    async def record_refusal(self, snapshot: Snapshot) -> None:
        """Record that assisted-service refuses it to its credentials.

        Its payload stays: only these credentials open it, and it is served only after assisted-service has
        given an equal answer to them.
        """
        await self._write(self._repository.record_refusal(snapshot.stored_key, snapshot.generation))

    async def end(self, snapshot: Snapshot, at: float) -> None:
        """Remove all generations of a key: these credentials may not see them any more.

        Raises:
            Unavailable: replicas share the repository, which goes on to have them.
        """
        self.forget(snapshot)
        await self._write(self._repository.end(snapshot.stored_key, self._to_wall(at)), is_required=True)

    def forget(self, snapshot: Snapshot) -> None:
        """Drop all generations of a key from memory: another process has removed them."""
        for recent in [recent for recent in self._recent if recent[0] == snapshot.stored_key]:
            self._recent.pop(recent)

    async def remove_unused(self, unused_seconds: float) -> None:
        """Remove what has not been used for so long; is called periodically.

        After a step of the wall clock that makes everything look unused, nothing is removed for that time.
        """
        now, offset = self._clock.seconds(), self._offset()
        if offset - self._offset_at_cleanup > unused_seconds / 2:
            self._no_cleanup_until = now + unused_seconds
        self._offset_at_cleanup = offset
        if now < self._no_cleanup_until:
            return
        unused_since = self._wall_clock() - unused_seconds
        removed = await self._write(self._repository.remove_unused(unused_since, self._latest()))
        if removed:
            self._log.info("removed {count} unused snapshots", count=removed)

    # Infra-envs.

    async def load_infra_env(
        self, infra_env_id: str, credentials: Credentials | None
    ) -> tuple[InfraEnv, float] | None:
        """Return an infra-env without its kernel arguments, and when it was fetched.

        None: it is not there, or cannot be read; it is not pinned, so each replica may ask for it.
        """
        key = self.key_of_infra_env(infra_env_id, credentials)
        with suppress(Unavailable):
            stored = await self.find_newest(key)
            if stored is not None:
                found = await self._load("infra-env", key, stored.generation, credentials, decode_infra_env)
                return None if found is None else (found, stored.validated_at)
        return None

    async def save_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, infra_env: InfraEnv, at: float
    ) -> None:
        """Store an infra-env without its kernel arguments, if possible; a change is a new generation."""
        key, payload = self.key_of_infra_env(infra_env_id, credentials), encode_infra_env(infra_env)
        stored_at = self._to_wall(at)
        try:
            newest = await self.find_newest(key)
        except Unavailable:
            return
        stored = await self.load_infra_env(infra_env_id, credentials)
        if newest and stored and encode_infra_env(stored[0]) == payload:
            await self._write(self._repository.record_validation(key, newest.generation, stored_at))
            return
        generation = 1 + newest.generation if newest else first_generation()
        sealed = self.cipher.seal(key, generation, credentials, payload)
        owner = self.cipher.owner_of(infra_env_id, credentials)
        await self._write(self._repository.add(key, generation, sealed, stored_at, owner))

    async def _put(
        self, snapshot: Snapshot, customization: Customization, credentials: Credentials | None
    ) -> bool | None:
        """Return True if it is stored, False if there is a newer one, None if the repository failed."""
        key, generation = snapshot.stored_key, snapshot.generation
        sealed = await self._run(
            _size(customization),
            lambda: self.cipher.seal(key, generation, credentials, encode_customization(customization)),
        )
        owner = self.cipher.owner_of(snapshot.key.infra_env_id, credentials)
        added = self._repository.add(
            key, generation, sealed, snapshot.stored_at, owner, layout=snapshot.layout
        )
        return await self._write(added, is_required=True)

    async def _fingerprint(self, customization: Customization) -> bytes:
        work = partial(fingerprint, customization)
        if customization.ramdisk is not None:  # of a few bytes, it may unpack to many
            return await self._in_thread(work)
        return await self._run(_size(customization), work)


def _size(customization: Customization) -> int:
    arguments = sum(len(argument.value) for argument in customization.kernel_arguments)
    return len(customization.ignition) + len(customization.ramdisk or b"") + arguments
