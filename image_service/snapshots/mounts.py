"""Mounts: which version of an image each client is reading, so that it gets no other while it does."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred  # noqa: TC002 - attrs resolves annotations

from image_service.concurrency.coordination import LocalCoordination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.coordination import Coordination
    from image_service.images.reference import Reader

MAX_MOUNTS = 16384
_Version = TypeVar("_Version")


@attrs.define(eq=False)
class Mount(Generic[_Version]):
    """A reader's place in a version of an image.

    Args:
        version: what it reads.
        read_at: when it last did, the clock's seconds.
        answers: those that are still being sent.
        saved_at: of when it is known beyond this process, the clock's seconds; None: it is not.
        began_at: when this process learned of it, the clock's seconds.
        key: of the reader, alike in all processes.
        stamp: the version of `key` then; another one now: another process has moved the reader on.
        noting: while it is being noted where other processes look; answers that begin it wait for that.
        is_over: the reader is known to be in the midst of something else, or of nothing.
    """

    version: _Version
    read_at: float
    began_at: float
    key: bytes
    stamp: int
    answers: int = 0
    saved_at: float | None = None
    noting: Deferred[None] | None = None
    is_over: bool = False


class Mounts(Generic[_Version]):
    """The mounts in progress.

    Args:
        clock: tells the time.
        window_seconds: how long after its last read a mount is in progress.
        digest: of a reader, alike in all processes.
        coordination: with the processes that may serve the same readers.
    """

    def __init__(
        self,
        clock: IReactorTime,
        window_seconds: float,
        digest: Callable[[Reader], bytes],
        coordination: Coordination | None = None,
    ) -> None:
        self._clock = clock
        self._window_seconds = window_seconds
        self._digest = digest
        self._coordination = coordination or LocalCoordination()
        self._mounts: OrderedDict[Reader, Mount[_Version]] = OrderedDict()

    def find(self, reader: Reader) -> _Version | None:
        """Give the version that a reader is in the midst of, if it is known to be in any."""
        mount = self._mounts.get(reader)
        return None if mount is None or not self._goes_on(mount) else mount.version

    def last(self, reader: Reader) -> _Version | None:
        """Give the version that a reader was in the midst of, whatever other processes have done since."""
        mount = self._mounts.get(reader)
        return mount.version if mount is not None and self._is_in_progress(mount) else None

    def begin(self, reader: Reader, version: _Version) -> Mount[_Version]:
        """Note that a reader reads; whoever knows of another version that it did is told to look again.

        Args:
            reader: who.
            version: what.

        Returns:
            its mount, whose ``answers`` the caller counts.
        """
        mount, now = self._mounts.get(reader), self._clock.seconds()
        if mount is None or not self._goes_on(mount) or not self._is_of(mount, version):
            mount = self.learn(reader, version, self.renew(reader), now)
            mount.saved_at = None
        mount.read_at = max(mount.read_at, now)
        self._mounts.move_to_end(reader)
        return mount

    def go_on(self, reader: Reader, mount: Mount[_Version]) -> bool:
        """Note that a reader reads on.

        Args:
            reader: who.
            mount: its own, from ``begin``.

        Returns:
            False: that is not, or not any more, what it is known to be in the midst of; nothing is noted.
        """
        if mount.is_over or not self._goes_on(mount):
            return False
        mount.read_at = self._clock.seconds()
        self._mounts.move_to_end(reader)
        return True

    def learn(self, reader: Reader, version: _Version, stamp: int, read_at: float) -> Mount[_Version]:
        """Note what a reader reads, as it is known beyond this process.

        Args:
            reader: who.
            version: what.
            stamp: the reader's, as it was before that was looked up.
            read_at: when it last did, the clock's seconds.

        Returns:
            its mount.
        """
        mount = self._mounts.get(reader)
        if mount is None or not self._is_of(mount, version):
            if mount is not None:
                mount.is_over = True
            now = self._clock.seconds()
            mount = self._mounts[reader] = Mount(version, read_at, now, self._digest(reader), stamp)
        mount.read_at, mount.stamp, mount.saved_at = max(mount.read_at, read_at), stamp, read_at
        self._mounts.move_to_end(reader)
        while len(self._mounts) > MAX_MOUNTS:
            _, oldest = self._mounts.popitem(last=False)
            oldest.is_over = True
        return mount

    def stamp(self, reader: Reader) -> int:
        """Give a reader's stamp: what is looked up from now on is as good as that is."""
        return self._coordination.version(self._digest(reader))

    def renew(self, reader: Reader) -> int:
        """Give a reader another stamp, so that whoever knows what it reads looks again."""
        return self._coordination.bump(self._digest(reader))

    def end(self, mount: Mount[_Version]) -> None:
        """Note that one of a mount's answers is over.

        Args:
            mount: whose.
        """
        mount.answers -= 1
        mount.read_at = self._clock.seconds()

    def to_save(self) -> Iterator[tuple[Reader, Mount[_Version]]]:
        """Give the mounts that have read since they were saved, and forget those that are over."""
        now = self._clock.seconds()
        for reader, mount in list(self._mounts.items()):
            if not self._is_in_progress(mount):
                del self._mounts[reader]
                mount.is_over = True
                continue
            if mount.answers > 0:
                mount.read_at = now
            if mount.saved_at is None or mount.saved_at < mount.read_at:
                mount.saved_at = mount.read_at
                yield reader, mount

    def versions(self) -> Iterator[_Version]:
        """Give those that are being read."""
        return (mount.version for mount in self._mounts.values() if self._is_in_progress(mount))

    def _is_in_progress(self, mount: Mount[_Version]) -> bool:
        return mount.answers > 0 or self._clock.seconds() <= mount.read_at + self._window_seconds

    def _goes_on(self, mount: Mount[_Version]) -> bool:
        return self._is_current(mount) and self._is_in_progress(mount)

    def _is_current(self, mount: Mount[_Version]) -> bool:
        return mount.stamp == self._coordination.version(mount.key)

    @staticmethod
    def _is_of(mount: Mount[_Version], version: _Version) -> bool:
        return mount.version is version or mount.version == version
