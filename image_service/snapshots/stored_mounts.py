"""Mounts beyond this process: what is being read is noted in the store, and looked up there.

What a reader begins is noted before it gets any of it, for who knows how this process ends; that it goes on
is noted now and then. Where other processes may serve the same reader, its answers wait for what is being
noted, and the reader's stamp tells them to look.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.coordination import Coordination
    from image_service.images.reference import Reader
    from image_service.snapshots.mounts import Mount, Mounts
    from image_service.snapshots.snapshot import Snapshot
    from image_service.snapshots.versions import Version

_log = Logger()

SAVE_SECONDS = 10.0
"""How often it is noted who is reading what, where mounts last for long."""
MIN_SAVE_SECONDS = 0.1


class Remembered(Protocol):
    """What a reader was reading."""

    @property
    def key(self) -> bytes:
        """Of the snapshot."""

    @property
    def generation(self) -> int:
        """Of the snapshot."""

    @property
    def base_sha256(self) -> str:
        """Of the base."""

    @property
    def read_at(self) -> float:
        """When it last did, seconds since the epoch."""


class Memory(Protocol):
    """Where mounts outlive the process."""

    async def recall(self, reader: Reader) -> Remembered | None:
        """What a reader was reading."""

    async def save_mounts(self, mounts: Iterable[tuple[Reader, Snapshot, str, float, float]]) -> None:
        """Keep what is being read: snapshot, the base's SHA-256, when, and since when all else stays."""

    def reader_of(self, reader: Reader) -> bytes:
        """A digest that stands for a reader."""


@attrs.frozen
class Recalled:
    """What was found about a reader.

    Args:
        stamp: the reader's, as it was before anybody looked.
        mount: what it is in the midst of; None: nothing, as far as is known beyond this process.
    """

    stamp: int
    mount: Remembered | None


class KeptMounts:
    """Notes mounts, and looks them up.

    Args:
        memory: where.
        mounts: of this process.
        clock: tells the time, in seconds since the epoch.
        window_seconds: how long after its last read a mount is in progress.
        coordination: with the processes that may serve the same readers.
    """

    def __init__(
        self,
        memory: Memory,
        mounts: Mounts[Version],
        clock: IReactorTime,
        window_seconds: float,
        coordination: Coordination,
    ) -> None:
        self._memory = memory
        self._mounts = mounts
        self._clock = clock
        self._window_seconds = window_seconds
        self._coordination = coordination
        self.save_seconds = save_seconds(window_seconds)

    def note(self, reader: Reader, mount: Mount[Version]) -> None:
        """Have it known what a reader reads, where that is not known or was noted a while ago.

        Args:
            reader: who.
            mount: its own. Nothing is to be sent before its ``noting`` is over.
        """
        if mount.saved_at is None:
            self._note(mount, self._begin(reader, mount.version, inf))
        elif not self._is_lately_saved(mount):
            self._note(mount, self._save([(reader, mount)]))

    def is_noted(self, mount: Mount[Version]) -> bool:
        """Tell whether ``note`` would do nothing, and there is nothing to wait for.

        Args:
            mount: which.
        """
        return mount.noting is None and self._is_lately_saved(mount)

    def noted_until(self, mount: Mount[Version]) -> float:
        """Tell until when a mount that is noted need not be noted again.

        Args:
            mount: which.
        """
        return -inf if mount.saved_at is None else mount.saved_at + self.save_seconds

    async def begins(self, reader: Reader, version: Version) -> bool:
        """Have a reader that is in the midst of nothing begin a version.

        Args:
            reader: who.
            version: what.

        Returns:
            False: another process has begun another one with it.
        """
        since = self._clock.seconds() - self._window_seconds
        return await self._coordination.publish(partial(self._begin, reader, version, since))

    async def save(self) -> None:
        """Note all mounts that have read since the last time, for a process that may follow this one."""
        await self._save(self._mounts.to_save())

    async def recall(self, reader: Reader) -> Recalled:
        """Look up what a reader is in the midst of.

        Args:
            reader: who.

        Returns:
            what was found, for ``learn``.
        """
        stamp = self._mounts.stamp(reader)
        mount = await self._memory.recall(reader)
        if mount is not None and self._clock.seconds() > mount.read_at + self._window_seconds:
            mount = None
        return Recalled(stamp, mount)

    def learn(self, reader: Reader, version: Version, recalled: Recalled) -> None:
        """Take over what was found.

        Args:
            reader: who reads.
            version: what.
            recalled: from ``recall``, for the same reader.
        """
        mount = recalled.mount
        self._mounts.learn(reader, version, recalled.stamp, mount.read_at if mount else 0.0)

    def _is_lately_saved(self, mount: Mount[Version]) -> bool:
        return mount.read_at < self.noted_until(mount)

    def _note(self, mount: Mount[Version], saving: Coroutine[Any, Any, object]) -> None:
        """Have other processes know of a mount; while there may be any, its answers wait for that."""
        mount.saved_at = mount.read_at
        noting = Deferred.fromCoroutine(saving)
        noting.addErrback(lambda failure: _log.failure("a mount was not saved", failure=failure))
        mount.noting = self._coordination.until_visible(noting)
        if mount.noting is not None:
            mount.noting.addCallback(lambda _: setattr(mount, "noting", None))

    async def _save(self, mounts: Iterable[tuple[Reader, Mount[Version]]]) -> None:
        await self._memory.save_mounts(
            (reader, mount.version.snapshot, mount.version.base.sha256, mount.read_at, mount.began_at)
            for reader, mount in mounts
            if mount.version.snapshot is not None and not mount.version.snapshot.tenure.ended
        )

    async def _begin(self, reader: Reader, version: Version, since: float) -> bool:
        """Have a reader go on with a version wherever it comes, unless it has read another one since then."""
        if version.snapshot is None:
            return True
        now = self._clock.seconds()
        await self._memory.save_mounts([(reader, version.snapshot, version.base.sha256, now, since)])
        return await self._coordination.publish(partial(self._confirm, reader, version, now))

    async def _confirm(self, reader: Reader, version: Version, now: float) -> bool:
        stamp = self._mounts.renew(reader)
        kept = await self._memory.recall(reader)  # as of after that: who writes later renews the stamp later
        if kept is not None and not is_of(kept, version):
            return False
        self._mounts.learn(reader, version, stamp, now)
        return True


def save_seconds(window_seconds: float) -> float:
    """Tell how often mounts are to be noted, so that none is taken for over that another process serves.

    Args:
        window_seconds: how long after its last read a mount is in progress.

    Returns:
        at most half of that, but never much work for a tiny one.
    """
    return min(SAVE_SECONDS, max(window_seconds / 4, MIN_SAVE_SECONDS))


def is_of(remembered: Remembered, version: Version) -> bool:
    """Tell whether a version is what a reader was reading.

    Args:
        remembered: what it was.
        version: one.
    """
    snapshot = version.snapshot
    return (
        snapshot is not None
        and (remembered.key, remembered.generation) == (snapshot.key, snapshot.generation)
        and remembered.base_sha256 == version.base.sha256
    )
