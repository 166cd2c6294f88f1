"""Mounts: which version of an image each client is reading, so that it gets no other one meanwhile.

A mount is stored before its reader gets any byte, because this process may be killed at any time; further
reads are stored now and then. If other processes may serve the same reader, responses wait for the first
write, and the version of the reader's key (see `Coordination`) makes them load it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import Unavailable
from image_service.server.snapshots.storage.repository import StoredMount
from image_service.server.snapshots.versions import Version  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.images.reference import Reader, ReaderKey
    from image_service.server.snapshots.storage.sealed_mounts import SealedMounts

_log = Logger()

MAX_MOUNTS = 16384
SAVE_SECONDS = 10.0
"""How often a mount with a long window is stored."""
MIN_SAVE_SECONDS = 0.1
_UNKNOWN = -1
"""In place of a reader's counter: it equals none, so the reader's next request reads the repository again."""


@attrs.define(eq=False)
class Mount:
    """A reader in the middle of a version. Instants are seconds of the process's clock.

    Args:
        reader: stands for the reader in the repository.
        read_at: when it last read.
        started_at: when this process learned of the mount.
        reader_counter: of the reader's key then; another one now: another process has moved the reader on.
        responses: that are being sent.
        saved_at: the ``read_at`` that is stored; minus infinity: the mount is not.
        saved_generation: of the snapshot, as stored: one that was in memory only has another one since.
        saving: what responses wait for until other processes can see the mount; None: nothing.
        is_over: the reader is known to read something else, or nothing.
    """

    reader: bytes
    version: Version
    read_at: float
    started_at: float
    reader_counter: int
    responses: int = 0
    saved_at: float = -inf
    saved_generation: int | None = None
    saving: Deferred[Any] | None = None
    is_over: bool = False

    @property
    def generation(self) -> int | None:
        """Of its snapshot; None: a boot artifact has none."""
        return None if self.version.snapshot is None else self.version.snapshot.generation

    @property
    def is_saved(self) -> bool:
        """True if it is stored as it is."""
        return self.saved_at >= self.read_at and self.saved_generation == self.generation

    def set_saved(self, read_at: float) -> None:
        """Record that it is stored, or about to be."""
        self.saved_at, self.saved_generation = read_at, self.generation


class Mounts:
    """The mounts in progress, here and in the repository.

    Args:
        window_seconds: how long after its last read a mount is in progress.
    """

    def __init__(
        self,
        stored: SealedMounts,
        clock: IReactorTime,
        window_seconds: float,
        coordination: Coordination,
    ) -> None:
        self._stored = stored
        self._clock = clock
        self.window_seconds = window_seconds
        self._coordination = coordination
        self.cache: LruCache[ReaderKey, Mount] = LruCache(MAX_MOUNTS, on_evict=_end)
        self.save_seconds = save_seconds(window_seconds)
        self._late_seconds = min(2 * SAVE_SECONDS, window_seconds / 2)  # after which a periodic save is late
        self._saving = 0  # first writes that are not over

    # In this process.

    def find(self, reader: Reader) -> Version | None:
        """Return the version that a reader is reading; None: nothing, or another process knows."""
        mount = self.cache.peek(reader.key)
        return None if mount is None or not self._is_valid(mount) else mount.version

    def find_local(self, reader: Reader) -> Version | None:
        """Return the version that a reader was reading here, whatever other processes have served since."""
        mount = self.cache.peek(reader.key)
        return mount.version if mount is not None and self._is_in_progress(mount) else None

    def is_lost(self, reader: Reader) -> bool:
        """Return True if a reader is reading a version that nobody may see any more."""
        mount = self.cache.peek(reader.key)
        return mount is not None and mount.version.snapshot is not None and mount.version.snapshot.is_ended

    def versions(self) -> Iterator[Version]:
        """Return the versions that are being read."""
        return (mount.version for mount in self.cache.values() if self._is_in_progress(mount))

    def start_response(self, reader: Reader, version: Version) -> Mount:
        """Record that a response with content starts, and store its mount.

        Returns:
            the reader's mount, for `end_response`. Nothing may be sent before its ``saving`` has fired.
        """
        mount, now = self.cache.peek(reader.key), self._clock.seconds()
        if mount is None or not self._is_valid(mount) or mount.version != version:
            reader_key = self._stored.key_of(reader)
            mount = self._adopt(reader, reader_key, version, self._coordination.bump(reader_key), now)
            mount.saved_at = -inf
        mount.read_at = max(mount.read_at, now)
        self.cache.get(reader.key)  # now the most recently used
        mount.responses += 1
        if mount.saved_at == -inf:
            self._start_saving(mount, self._save_start(reader, mount.reader, version, inf), mount.reader)
        elif mount.read_at >= self._overdue_at(mount):
            self._start_saving(mount, self._save([mount]))
        return mount

    def keep_in_progress(self, mount: Mount) -> Callable[[], None]:
        """Keep a mount in progress until the returned function is called."""
        mount.responses += 1
        return partial(self.end_response, mount)

    def end_response(self, mount: Mount) -> None:
        """Record that a response of a mount is over."""
        mount.responses -= 1
        mount.read_at = self._clock.seconds()

    def touch(self, reader: Reader, mount: Mount) -> float | None:
        """Record a further read of a mount, if nothing has to be waited for.

        Returns:
            until when the periodic save must have stored the mount; None: it has not, the mount is being
            stored, or it is over.
        """
        if mount.is_over or not self._is_valid(mount):
            return None
        mount.read_at = self._clock.seconds()
        self.cache.get(reader.key)  # now the most recently used
        overdue_at = self._overdue_at(mount)
        return None if mount.saving is not None or mount.read_at >= overdue_at else overdue_at

    def watch(self, mount: Mount) -> Callable[[], bool]:
        """Return a cheap function: True while no other process changes the mount or its snapshot."""
        snapshot = mount.version.snapshot
        keys = (mount.reader,) if snapshot is None else (mount.reader, snapshot.stored_key)
        return self._coordination.watch(*keys)

    def _adopt(
        self, reader: Reader, reader_key: bytes, version: Version, reader_counter: int, read_at: float
    ) -> Mount:
        """Put a mount, as it is stored, in the place of the one that is known here."""
        mount = self.cache.get(reader.key)
        if mount is None or mount.version != version:
            if mount is not None:
                mount.is_over = True
            mount = Mount(reader_key, version, read_at, self._clock.seconds(), reader_counter)
            self.cache[reader.key] = mount
        mount.read_at = max(mount.read_at, read_at)
        mount.set_saved(read_at)
        mount.reader_counter = reader_counter
        return mount

    def _overdue_at(self, mount: Mount) -> float:
        """Return when a read stores a mount by itself, because the periodic save is late."""
        return mount.saved_at + self._late_seconds

    def _is_in_progress(self, mount: Mount) -> bool:
        return mount.responses > 0 or self._clock.seconds() <= mount.read_at + self.window_seconds

    def _is_valid(self, mount: Mount) -> bool:
        is_current = mount.reader_counter == self._coordination.counter(mount.reader)
        return is_current and self._is_in_progress(mount)

    # In the repository.

    async def find_stored(self, reader: Reader) -> tuple[int, StoredMount | None]:
        """Return the version of a reader's key, and then its mount if that is in progress.

        Raises:
            Unavailable: replicas share the repository, which cannot be read, and nothing is known here.
        """
        reader_key = self._stored.key_of(reader)
        reader_counter = self._coordination.counter(reader_key)
        try:
            stored = await self._stored.find(reader_key)
        except Unavailable:
            if self.find_local(reader) is None:  # another replica may know what it is reading
                raise
            return _UNKNOWN, None
        if stored is not None and self._clock.seconds() > stored.read_at + self.window_seconds:
            stored = None
        return reader_counter, stored

    def adopt(
        self, reader: Reader, version: Version, reader_counter: int, stored: StoredMount | None
    ) -> None:
        """Take over the mount that `find_stored` returned."""
        reader_key = self._stored.key_of(reader)
        self._adopt(reader, reader_key, version, reader_counter, stored.read_at if stored else -inf)

    async def start_over(self, reader: Reader, version: Version) -> None:
        """Start a version for a reader, whatever it was reading."""
        reader_key = self._stored.key_of(reader)
        self._adopt(reader, reader_key, version, self._coordination.bump(reader_key), self._clock.seconds())
        saved = Deferred.fromCoroutine(self._save_start(reader, reader_key, version, inf))
        await (self._coordination.until_visible(saved, reader_key) or saved)

    async def start_unless_taken(self, reader: Reader, version: Version) -> bool:
        """Start a version for a reader that reads none.

        Returns:
            False: another process has started another version for it.
        """
        replaces_before = self._clock.seconds() - self.window_seconds
        reader_key = self._stored.key_of(reader)
        return await self._coordination.run_if_shared(
            partial(self._save_start, reader, reader_key, version, replaces_before)
        )

    async def count_stored(self) -> Mapping[str, int] | None:
        """Return how many stored mounts are in progress, by the digest of their base; None: not known."""
        idle_seconds = self.window_seconds + self.save_seconds
        return await self._stored.count(self._clock.seconds() - idle_seconds)

    async def save(self) -> bool:
        """Store the mounts that have read since the last time, and forget those that are over.

        Returns:
            False if one was not stored, or is being stored.
        """
        return await self._save(self.unsaved()) and not self._saving

    def unsaved(self) -> list[Mount]:
        """Return the mounts that have read since they were stored, as stored; forget those that are over."""
        now = self._clock.seconds()
        found = []
        for key, mount in list(self.cache.items()):
            if not self._is_in_progress(mount):
                self.cache.pop(key)
                mount.is_over = True
                continue
            if mount.responses > 0:
                mount.read_at = now
            if not mount.is_saved:
                mount.set_saved(mount.read_at)
                found.append(mount)
        return found

    def _start_saving(self, mount: Mount, saving: Coroutine[Any, Any, object], *bumped: bytes) -> None:
        mount.set_saved(mount.read_at)
        self._saving += 1
        saved = Deferred.fromCoroutine(saving)
        saved.addErrback(lambda failure: _log.failure("cannot save a mount", failure=failure))
        saved.addBoth(self._end_saving)
        mount.saving = self._coordination.until_visible(saved, *bumped)
        if mount.saving is not None:
            mount.saving.addCallback(lambda _: setattr(mount, "saving", None))

    def _end_saving(self, result: Any) -> Any:  # noqa: ANN401 - of any first write
        self._saving -= 1
        return result

    async def _save(self, mounts: list[Mount]) -> bool:
        is_saved = await self._stored.save(
            [
                _stored(mount.reader, mount.version, mount.read_at, mount.started_at)
                for mount in mounts
                if mount.version.snapshot is not None and not mount.version.snapshot.is_ended
            ]
        )
        for mount in mounts:
            if not is_saved:
                self._save_later(mount)
            elif mount.reader_counter == _UNKNOWN:  # other processes learn of its start only now
                self._coordination.bump(mount.reader)
        return is_saved

    async def _save_start(
        self, reader: Reader, reader_key: bytes, version: Version, replaces_before: float
    ) -> bool:
        """Have all processes serve a reader this version, unless it has read another one in the window."""
        if version.snapshot is None:
            return True
        now = self._clock.seconds()
        is_saved = await self._stored.save([_stored(reader_key, version, now, replaces_before)])

        async def confirm() -> bool:
            reader_counter = self._coordination.bump(reader_key)
            stored, is_known = None, False
            with suppress(Unavailable):
                stored = await self._stored.find(reader_key)  # a later writer bumps it later
                is_known = is_saved
            is_version = stored is None or is_of(stored, version)
            if is_version:
                self._adopt(reader, reader_key, version, reader_counter, now)
            mount = self.cache.peek(reader.key)
            if not is_known and mount is not None:
                # Another process may have saved another mount, which wins: the next request reads the row.
                mount.reader_counter = _UNKNOWN
            return is_version

        is_version = await self._coordination.run_if_shared(confirm)
        mount = self.cache.peek(reader.key)
        if not is_saved and mount is not None:
            self._save_later(mount)
        return is_version

    def _save_later(self, mount: Mount) -> None:
        """Have the next periodic save store a mount; if that is late, a read does so sooner than usual."""
        mount.saved_at = min(mount.saved_at, mount.read_at - self._late_seconds / 2)


def _end(_: ReaderKey, mount: Mount) -> None:
    mount.is_over = True


def _stored(reader: bytes, version: Version, read_at: float, replaces_before: float) -> StoredMount:
    assert version.snapshot is not None  # noqa: S101 - boot artifacts are not stored
    key, generation = version.snapshot.stored_key, version.snapshot.generation
    return StoredMount(reader, key, generation, version.base.sha256, read_at, replaces_before)


def is_of(stored: StoredMount, version: Version) -> bool:
    """Return True if a stored mount reads this version."""
    snapshot = version.snapshot
    return (
        snapshot is not None
        and (stored.key, stored.generation) == (snapshot.stored_key, snapshot.generation)
        and stored.base_sha256 == version.base.sha256
    )


def save_seconds(window_seconds: float) -> float:
    """Return how often mounts are stored, so that none in progress seems to be over to other processes.

    At most half of the window, but not much work for a tiny one.
    """
    return min(SAVE_SECONDS, max(window_seconds / 4, MIN_SAVE_SECONDS))
