"""Access to a repository that may fail, with sealed payloads, and with times of the process's clock.

A repository of this host costs no request when it fails: the service goes on in memory. Replicas that share
one would then serve different images at one URL: they refuse what they cannot read, or store, first.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.circuit_breaker import TIMEOUT_SECONDS
from image_service.core.errors import SnapshotUnreadable, StoreFailed, StoreFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.parts import InThread
    from image_service.core.images.reference import Credentials
    from image_service.server.snapshots.storage.encryption import SnapshotCipher
    from image_service.server.snapshots.storage.repository import (
        SnapshotRepository,
        StoredMount,
        StoredSnapshot,
    )

T = TypeVar("T")

STORE_OPERATIONS = (READ, WRITE) = ("read", "write")
"""On stored snapshots, as in logs and metrics."""
RETRY_AFTER_SECONDS = 2
"""Of requests that a shared repository's failure refuses."""
THREAD_BYTES = 128 * 1024
"""What is larger is encrypted and compared in a thread."""


class RepositoryAccess:
    """The base of `SealedRepository`: converts times, opens payloads, and returns None for a failure.

    Instants are the clock's seconds; minus infinity: never.

    Args:
        clock: monotonic.
        wall_clock: returns seconds since the epoch, which may be wrong, and be set.
        clock_error_seconds: None: no other host uses the repository. Else replicas share it, and a stored
            instant may be as far in the future.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - what it accesses, and two clocks
        self,
        repository: SnapshotRepository,
        cipher: SnapshotCipher,
        in_thread: InThread,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        *,
        clock_error_seconds: float | None,
    ) -> None:
        self._repository = repository
        self.cipher = cipher
        self._in_thread = in_thread
        self._clock = clock
        self._wall_clock = wall_clock
        self._is_shared = clock_error_seconds is not None
        self._clock_error_seconds = clock_error_seconds or 0.0
        self._failed_at: dict[str, float] = {}

    @property
    def failing(self) -> Mapping[str, bool]:
        """Of each of `STORE_OPERATIONS`, whether it has failed and not succeeded since."""
        return {operation: operation in self._failed_at for operation in STORE_OPERATIONS}

    async def find_newest(self, stored_key: bytes) -> StoredSnapshot | None:
        """Return the state of a key's newest snapshot, which may be refused; ``taken_at`` is as stored."""
        stored = await self._read(self._repository.find_newest(stored_key))
        return stored and attrs.evolve(stored, validated_at=self._to_monotonic(stored.validated_at))

    async def save_mounts(self, mounts: Sequence[StoredMount]) -> bool:
        """Store which version each reader reads; return False if that failed."""
        stored = [
            attrs.evolve(
                mount,
                read_at=self._to_wall(mount.read_at),
                replaces_before=self._to_wall(mount.replaces_before),
            )
            for mount in mounts
        ]

        async def save() -> bool:
            await self._repository.save_mounts(stored, self._latest())
            return True

        return not stored or await self._write(save()) is True

    async def find_mount(self, reader_key: bytes) -> StoredMount | None:
        """Return what a reader was reading."""
        stored = await self._read(self._repository.find_mount(reader_key))
        return stored and attrs.evolve(stored, read_at=self._to_monotonic(stored.read_at))

    def _offset(self) -> float:
        """Return how far the wall clock is ahead of the monotonic one."""
        return self._wall_clock() - self._clock.seconds()

    def _to_wall(self, at: float) -> float:
        return at + self._offset()

    def _latest(self) -> float:
        """Return the latest instant that a replica may have stored by now."""
        return self._wall_clock() + self._clock_error_seconds

    def _to_monotonic(self, stored_at: float) -> float:
        """Convert a stored time; one in the future, or none at all, is of a wrong clock: it means never."""
        if not stored_at <= self._latest():
            return -inf
        return min(stored_at - self._offset(), self._clock.seconds())

    async def _load(
        self,
        name: str,
        key: bytes,
        generation: int,
        credentials: Credentials | None,
        decode: Callable[[bytes], T],
    ) -> T | None:
        """Return a stored payload; None: it is not stored any more, or unreadable."""
        sealed = await self._read(self._repository.load(key, generation))
        if sealed is None:
            return None
        try:
            return await self._run(
                len(sealed), lambda: decode(self.cipher.unseal(key, generation, credentials, sealed))
            )
        except SnapshotUnreadable as error:
            self._log.warn("cannot read a stored {name}: {detail}", name=name, detail=error.detail)
            return None

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        return await self._in_thread(work) if size > THREAD_BYTES else work()

    async def _read(self, attempt: Awaitable[T]) -> T | None:
        """Return None if it fails and the service goes on in memory.

        Raises:
            Unavailable: replicas share the repository.
        """
        return await self._try(READ, attempt, is_required=self._is_shared)

    async def _write(self, attempt: Awaitable[T], *, is_required: bool = False) -> T | None:
        """Return None if it fails.

        Raises:
            Unavailable: it is required, and replicas share the repository.
        """
        return await self._try(WRITE, attempt, is_required=is_required and self._is_shared)

    async def _try(self, operation: str, attempt: Awaitable[T], *, is_required: bool) -> T | None:
        """On a repository error, log the first one, and the first success after it."""
        try:
            result = await attempt
        except StoreFull as error:  # no failure: smaller ones are stored
            self._log.debug("{reason}", reason=error.detail)
            if is_required:
                raise Unavailable("the store of snapshots is full", retry_after_seconds=60) from None
            return None
        except StoreFailed as error:
            if operation not in self._failed_at:
                self._log.error(
                    "cannot {operation} stored snapshots, continuing {how}: {reason}",
                    operation=operation,
                    how="with known images only" if self._is_shared else "in memory",
                    reason=error.detail,
                )
            self._failed_at[operation] = self._clock.seconds()
            if is_required:
                reason = "the database of snapshots cannot be used now; known images are served"
                raise Unavailable(reason, retry_after_seconds=RETRY_AFTER_SECONDS) from None
            return None
        # Soon after a failure, others are over that began before it.
        if self._clock.seconds() > self._failed_at.get(operation, inf) + TIMEOUT_SECONDS:
            del self._failed_at[operation]
            self._log.info("can {operation} stored snapshots again", operation=operation)
        return result
