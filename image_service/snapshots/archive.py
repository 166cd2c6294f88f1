"""The archive of snapshots: sealed for whoever may read them, in a store that outlives the process.

A store that fails costs no request: what it did not take is among the answers that are kept in memory for a
while, and who needs it after that asks anew.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from twisted.logger import Logger

from image_service.errors import SnapshotUnreadable, StoreFailed
from image_service.images.fingerprint import fingerprint
from image_service.snapshots.customization_codec import decode_customization, encode_customization
from image_service.snapshots.infra_env_codec import decode_infra_env, encode_infra_env
from image_service.snapshots.repository import Mount
from image_service.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from image_service.assisted.answers import InfraEnv
    from image_service.concurrency.threads import InThread
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials, Reader, Ref
    from image_service.snapshots.encryption import SnapshotCipher
    from image_service.snapshots.repository import SnapshotStore, Stored
    from image_service.snapshots.snapshot import SnapshotKey

T = TypeVar("T")

RECENT_BYTES = 32 * 1024 * 1024
"""Answers kept in clear, since whoever is the first to want one has a second use for it at once."""
OVERHEAD_BYTES = 1024
"""What one of them costs beside its bytes, about."""
THREAD_BYTES = 128 * 1024
"""What is larger is encrypted and compared in a thread."""


class Archive:
    """Keeps snapshots and mounts.

    Args:
        store: where.
        vault: seals them.
        in_thread: runs what takes a while.
    """

    _log = Logger()

    def __init__(self, store: SnapshotStore, vault: SnapshotCipher, in_thread: InThread) -> None:
        self._store = store
        self._vault = vault
        self._in_thread = in_thread
        self._recent: OrderedDict[tuple[bytes, int], Customization] = OrderedDict()
        self._recent_bytes = 0
        self._failing: set[str] = set()

    async def latest(self, question: SnapshotKey) -> tuple[Snapshot, float] | None:
        """Give the newest snapshot and when it was last validated, in seconds since the epoch."""
        key = self.key_of(question)
        stored = await self._reading(self._store.latest(key))
        return None if stored is None else await self._restore(question, key, stored)

    async def state(self, question: SnapshotKey) -> Stored | None:
        """Give what is known of the newest snapshot, which may have ended, without opening it."""
        return await self._reading(self._store.latest(self.key_of(question)))

    async def holds(self, snapshot: Snapshot) -> bool:
        """Tell whether the store has a snapshot: neither has it ended, nor are there too many newer ones."""
        return await self._reading(self._store.load(snapshot.key, snapshot.generation)) is not None

    async def find(self, question: SnapshotKey, generation: int) -> Snapshot | None:
        """Give a snapshot that is not the newest any more."""
        key = self.key_of(question)
        customization = await self._load(question, key, generation)
        if customization is None:
            return None
        return Snapshot(question, key, generation, 0.0)

    async def load(self, snapshot: Snapshot) -> Customization | None:
        """Give what a snapshot holds; None: it is not kept any more."""
        return await self._load(snapshot.question, snapshot.key, snapshot.generation)

    async def add(
        self, question: SnapshotKey, customization: Customization, *, after: int, at: float
    ) -> Snapshot:
        """Keep a new generation, unless another process was faster to keep the same.

        Args:
            question: what was asked.
            customization: what was answered.
            after: the newest generation that is known.
            at: when it was answered, seconds since the epoch.

        Returns:
            what is served from now on: this answer, or that which the other process keeps.
        """
        key = self.key_of(question)
        snapshot = Snapshot(question, key, max(0, after) + 1, at)
        kept = await self._put(snapshot, customization)
        if kept is False:
            stored = await self._reading(self._store.latest(key))
            if stored is not None:
                restored = await self._restore(question, key, stored)
                if restored is not None and await self.holds_same(restored[0], customization):
                    return restored[0]
                after = max(stored.generation, snapshot.generation)
                return await self.add(question, customization, after=after, at=at)
        if not kept:
            # No other has this number, not even one that the store may have by the one above.
            snapshot.generation = -1 - secrets.randbits(62)
            snapshot.fingerprint = await self._fingerprint(customization)  # while the answer is here
        self._keep_recent((key, snapshot.generation), customization)
        return snapshot

    async def validated(self, snapshot: Snapshot, at: float) -> None:
        """Note that assisted-service said the same again, so that a restart need not ask."""
        await self._writing(self._store.validated(snapshot.key, snapshot.generation, at))

    async def end(self, snapshot: Snapshot, at: float) -> None:
        """Drop all generations: whoever asked may not see them any more."""
        self.forget(snapshot)
        await self._writing(self._store.end(snapshot.key, at))

    def forget(self, snapshot: Snapshot) -> None:
        """Let go of all generations that are in memory: another process has dropped them."""
        for recent in [recent for recent in self._recent if recent[0] == snapshot.key]:
            self._forget(recent)

    async def holds_same(self, snapshot: Snapshot, customization: Customization) -> bool:
        """Tell whether an answer is the same as a snapshot but for its tokens; it is not if that is not kept.

        The fingerprint of a snapshot is made here and not before: most are never compared with anything.
        """
        if snapshot.fingerprint is None:
            kept = await self.load(snapshot)
            snapshot.fingerprint = None if kept is None else await self._fingerprint(kept)
        return snapshot.fingerprint == await self._fingerprint(customization)

    async def save_mounts(self, mounts: Iterable[tuple[Reader, Snapshot, str, float, float]]) -> None:
        """Keep what is being read.

        Args:
            mounts: who reads, which snapshot, the base's SHA-256, when it last did, and since when whatever
                else it has read stays.
        """
        rows = [
            Mount(self.reader_of(reader), snapshot.key, snapshot.generation, base_sha256, read_at, since)
            for reader, snapshot, base_sha256, read_at, since in mounts
        ]
        if rows:
            await self._writing(self._store.save_mounts(rows))

    async def recall(self, reader: Reader) -> Mount | None:
        """Give what a client was reading."""
        return await self._reading(self._store.mount(self.reader_of(reader)))

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv | None:
        """Give what an infra-env has said last of which image it is for, without its kernel arguments."""
        key = self.key_of_infra_env(infra_env_id, credentials)
        stored = await self._reading(self._store.latest(key))
        if stored is None:
            return None
        sealed = await self._reading(self._store.load(key, stored.generation))
        if sealed is None:
            return None
        try:
            payload = self._vault.unseal(key, stored.generation, credentials, sealed)
            return decode_infra_env(payload, stored.validated_at)
        except SnapshotUnreadable as error:
            self._log.warn("what an infra-env said cannot be read: {detail}", detail=error.detail)
            return None

    async def keep_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, said: InfraEnv, at: float
    ) -> None:
        """Keep what an infra-env says; a generation is what it said for a while."""
        key, payload = self.key_of_infra_env(infra_env_id, credentials), encode_infra_env(said)
        stored = await self._reading(self._store.latest(key))
        kept = await self.infra_env(infra_env_id, credentials)
        if stored and kept and encode_infra_env(kept) == payload:
            await self._writing(self._store.validated(key, stored.generation, at))
            return
        generation = 1 + (stored.generation if stored else 0)
        sealed = self._vault.seal(key, generation, credentials, payload)
        await self._writing(self._store.add(key, generation, sealed, at))

    async def sweep(self, unused_since: float) -> None:
        """Drop what nobody has used since then, in seconds since the epoch."""
        swept = await self._writing(self._store.sweep(unused_since))
        if swept:
            self._log.info("{count} snapshots that nobody used were dropped", count=swept)

    def key_of(self, question: SnapshotKey) -> bytes:
        """Give what stands for a question in the store."""
        return self._vault.key_of(question.infra_env_id, question.kind.value, question.credentials)

    def key_of_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> bytes:
        """Give what stands for an infra-env, and for who asks it, in the store."""
        return self._vault.key_of(infra_env_id, "infra-env", credentials)

    def reader_of(self, reader: Reader) -> bytes:
        """Give what stands for a reader in the store."""
        return self._vault.reader_of(reader.address, reader.credentials, _text(reader.ref))

    async def _restore(
        self, question: SnapshotKey, key: bytes, stored: Stored
    ) -> tuple[Snapshot, float] | None:
        customization = None if stored.ended else await self._load(question, key, stored.generation)
        if customization is None:
            return None
        return Snapshot(question, key, stored.generation, stored.taken_at), stored.validated_at

    async def _put(self, snapshot: Snapshot, customization: Customization) -> bool | None:
        """Whether it is kept; None: the store failed."""
        key, generation, credentials = snapshot.key, snapshot.generation, snapshot.question.credentials

        def sealed() -> bytes:
            return self._vault.seal(key, generation, credentials, encode_customization(customization))

        payload = await self._run(_size(customization), sealed)
        return await self._writing(self._store.add(key, generation, payload, snapshot.taken_at))

    async def _load(self, question: SnapshotKey, key: bytes, generation: int) -> Customization | None:
        recent = self._recent.get((key, generation))
        if recent is not None:
            self._recent.move_to_end((key, generation))
            return recent
        sealed = await self._reading(self._store.load(key, generation))
        if sealed is None:
            return None
        credentials = question.credentials

        def opened() -> Customization:
            return decode_customization(self._vault.unseal(key, generation, credentials, sealed))

        try:
            customization = await self._run(len(sealed), opened)
        except SnapshotUnreadable as error:
            self._log.warn("a snapshot cannot be read: {detail}", detail=error.detail)
            return None
        self._keep_recent((key, generation), customization)
        return customization

    async def _fingerprint(self, customization: Customization) -> bytes:
        """In a thread where that takes a while."""
        work = partial(fingerprint, customization)
        if customization.ramdisk is not None:  # of a few bytes, it may unpack to many
            return await self._in_thread(work)
        return await self._run(_size(customization), work)

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        return await self._in_thread(work) if size > THREAD_BYTES else work()

    async def _reading(self, attempt: Awaitable[T | None]) -> T | None:
        return await self._try("read", attempt)

    async def _writing(self, attempt: Awaitable[T]) -> T | None:
        return await self._try("written", attempt)

    async def _try(self, what: str, attempt: Awaitable[T]) -> T | None:
        """Do without the store where it fails, and say so once."""
        try:
            result = await attempt
        except StoreFailed as error:
            if what not in self._failing:
                self._log.error(
                    "stored snapshots cannot be {what}, memory has to do: {reason}",
                    what=what,
                    reason=error.detail,
                )
            self._failing.add(what)
            return None
        self._failing.discard(what)
        return result

    def _keep_recent(self, which: tuple[bytes, int], customization: Customization) -> None:
        """Keep it, even one that is larger than all that is kept otherwise: it is about to be used."""
        self._forget(which)
        self._recent[which] = customization
        self._recent_bytes += _size(customization) + OVERHEAD_BYTES
        while self._recent_bytes > RECENT_BYTES and len(self._recent) > 1:
            self._forget(next(iter(self._recent)))

    def _forget(self, which: tuple[bytes, int]) -> None:
        forgotten = self._recent.pop(which, None)
        if forgotten is not None:
            self._recent_bytes -= _size(forgotten) + OVERHEAD_BYTES


def _size(customization: Customization) -> int:
    arguments = sum(len(argument.value) for argument in customization.kernel_arguments)
    return len(customization.ignition) + len(customization.ramdisk or b"") + arguments


def _text(ref: Ref) -> str:
    """A reference, alike in every process."""
    if not ref.needs_customization:
        return f"{ref.artifact.value} {ref.version} {ref.architecture}"
    kind = ref.kind.value if ref.kind else None
    return f"{ref.infra_env_id} {ref.version} {ref.architecture} {kind}"
