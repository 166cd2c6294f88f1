"""The archive of snapshots: sealed for whoever may read them, in a store that outlives the process.

A store that fails costs no request: what it did not take is kept in memory, and a restart asks anew.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from twisted.logger import Logger

from image_service.assisted.customization_codec import decode_customization, encode_customization
from image_service.assisted.snapshot_store import Mount
from image_service.errors import SnapshotUnreadable, StoreFailed
from image_service.images.fingerprint import fingerprint
from image_service.images.reference import ArtifactRef
from image_service.images.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from image_service.assisted.sealing import Vault
    from image_service.assisted.snapshot_store import SnapshotStore, Stored
    from image_service.images.customization import Customization
    from image_service.images.reference import Reader, Ref
    from image_service.images.snapshot import Question

T = TypeVar("T")

RECENT_BYTES = 32 * 1024 * 1024
"""Answers kept in clear, since whoever is the first to want one has a second use for it at once."""
THREAD_BYTES = 128 * 1024
"""What is larger is encrypted and compared in a thread."""


class InThread(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Give what the work does."""


class Archive:
    """Keeps snapshots and mounts.

    Args:
        store: where.
        vault: seals them.
        in_thread: runs what takes a while.
    """

    _log = Logger()

    def __init__(self, store: SnapshotStore, vault: Vault, in_thread: InThread) -> None:
        self._store = store
        self._vault = vault
        self._in_thread = in_thread
        self._recent: OrderedDict[tuple[bytes, int], Customization] = OrderedDict()
        self._recent_bytes = 0
        self._is_failing = False

    async def latest(self, question: Question) -> tuple[Snapshot, float] | None:
        """Give the newest snapshot and when it was last validated, in seconds since the epoch."""
        key = self._key(question)
        stored = await self._try(self._store.latest(key), None)
        return None if stored is None else await self._restore(question, key, stored)

    async def find(self, question: Question, generation: int) -> Snapshot | None:
        """Give a snapshot that is not the newest any more."""
        key = self._key(question)
        customization = await self._load(question, key, generation)
        if customization is None:
            return None
        return Snapshot(question, key, generation, 0.0, await self.fingerprint(customization))

    async def load(self, snapshot: Snapshot) -> Customization | None:
        """Give what a snapshot holds; None: it is not kept any more."""
        return await self._load(snapshot.question, snapshot.key, snapshot.generation)

    async def add(
        self, question: Question, customization: Customization, *, after: int, at: float
    ) -> Snapshot:
        """Keep a new generation, unless another process was faster.

        Args:
            question: what was asked.
            customization: what was answered.
            after: the newest generation that is known.
            at: when it was answered, seconds since the epoch.

        Returns:
            what is served from now on: this answer, or that which the other process keeps.
        """
        key = self._key(question)
        kept = await self._put(question, key, after + 1, customization, at)
        if kept is False:
            return await self._adopt(question, customization, after=after, at=at)
        unsaved = None if kept else customization
        return Snapshot(question, key, after + 1, at, await self.fingerprint(customization), unsaved=unsaved)

    async def validated(self, snapshot: Snapshot, at: float) -> None:
        """Note that assisted-service said the same again, so that a restart need not ask."""
        await self._try(self._store.validated(snapshot.key, snapshot.generation, at), None)

    async def end(self, snapshot: Snapshot, at: float) -> None:
        """Drop all generations: whoever asked may not see them any more."""
        for recent in [recent for recent in self._recent if recent[0] == snapshot.key]:
            self._forget(recent)
        await self._try(self._store.end(snapshot.key, at), None)

    async def fingerprint(self, customization: Customization) -> bytes:
        """Tell whether another answer is the same; in a thread where that takes a while."""
        return await self._run(_size(customization), partial(fingerprint, customization))

    async def save_mounts(self, mounts: Iterable[tuple[Reader, Snapshot, str, float]]) -> None:
        """Keep what is being read: who reads, which snapshot, the base's SHA-256, when it last did."""
        rows = [
            Mount(self._reader(reader), snapshot.key, snapshot.generation, base_sha256, read_at)
            for reader, snapshot, base_sha256, read_at in mounts
        ]
        if rows:
            await self._try(self._store.save_mounts(rows), None)

    async def recall(self, reader: Reader) -> tuple[int, str, float] | None:
        """Give what a client was reading: generation, the base's SHA-256, when it last did."""
        mount = await self._try(self._store.mount(self._reader(reader)), None)
        return None if mount is None else (mount.generation, mount.base_sha256, mount.read_at)

    async def sweep(self, unused_since: float) -> None:
        """Drop what nobody has used since then, in seconds since the epoch."""
        swept = await self._try(self._store.sweep(unused_since), 0)
        if swept:
            self._log.info("{count} snapshots that nobody used were dropped", count=swept)

    def _key(self, question: Question) -> bytes:
        return self._vault.key_of(question.infra_env_id, question.kind.value, question.credentials)

    def _reader(self, reader: Reader) -> bytes:
        return self._vault.reader_of(reader.address, reader.credentials, _text(reader.ref))

    async def _adopt(
        self, question: Question, customization: Customization, *, after: int, at: float
    ) -> Snapshot:
        """Take what another process was faster to keep; where that has ended, go on behind it."""
        key = self._key(question)
        stored = await self._try(self._store.latest(key), None)
        restored = await self._restore(question, key, stored) if stored else None
        if restored is not None:
            return restored[0]
        return await self.add(
            question, customization, after=stored.generation if stored else after + 1, at=at
        )

    async def _restore(self, question: Question, key: bytes, stored: Stored) -> tuple[Snapshot, float] | None:
        customization = None if stored.ended else await self._load(question, key, stored.generation)
        if customization is None:
            return None
        print_of_it = await self.fingerprint(customization)
        snapshot = Snapshot(question, key, stored.generation, stored.taken_at, print_of_it)
        return snapshot, stored.validated_at

    async def _put(
        self, question: Question, key: bytes, generation: int, customization: Customization, at: float
    ) -> bool | None:
        """Whether it is kept; None: the store failed."""

        def sealed() -> bytes:
            payload = encode_customization(customization)
            return self._vault.seal(key, generation, question.credentials, payload)

        payload = await self._run(_size(customization), sealed)
        kept = await self._try(self._store.add(key, generation, payload, at), None)
        if kept:
            self._keep_recent((key, generation), customization)
        return kept

    async def _load(self, question: Question, key: bytes, generation: int) -> Customization | None:
        recent = self._recent.get((key, generation))
        if recent is not None:
            return recent
        sealed = await self._try(self._store.load(key, generation), None)
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

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        return await self._in_thread(work) if size > THREAD_BYTES else work()

    async def _try(self, attempt: Awaitable[T], otherwise: T) -> T:
        """Do without the store where it fails, and say so once."""
        try:
            result = await attempt
        except StoreFailed as error:
            if not self._is_failing:
                self._log.error("snapshots are kept in memory only: {reason}", reason=str(error))
            self._is_failing = True
            return otherwise
        self._is_failing = False
        return result

    def _keep_recent(self, which: tuple[bytes, int], customization: Customization) -> None:
        self._forget(which)
        self._recent[which] = customization
        self._recent_bytes += _size(customization)
        while self._recent_bytes > RECENT_BYTES:
            self._forget(next(iter(self._recent)))

    def _forget(self, which: tuple[bytes, int]) -> None:
        forgotten = self._recent.pop(which, None)
        if forgotten is not None:
            self._recent_bytes -= _size(forgotten)


def _size(customization: Customization) -> int:
    return len(customization.ignition or b"") + len(customization.ramdisk or b"")


def _text(ref: Ref) -> str:
    """A reference, alike in every process."""
    if isinstance(ref, ArtifactRef):
        return f"{ref.artifact.value} {ref.version} {ref.architecture}"
    kind = ref.kind.value if ref.kind else None
    return f"{ref.infra_env_id} {ref.version} {ref.architecture} {kind}"
