"""Mounts: which version of an image each client is reading, so that it gets no other while it does."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.interfaces import IReactorTime

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
    """

    version: _Version
    read_at: float
    answers: int = 0
    saved_at: float | None = None


class Mounts(Generic[_Version]):
    """The mounts in progress.

    Args:
        clock: tells the time.
        window_seconds: how long after its last read a mount is in progress.
    """

    def __init__(self, clock: IReactorTime, window_seconds: float) -> None:
        self._clock = clock
        self._window_seconds = window_seconds
        self._mounts: OrderedDict[Reader, Mount[_Version]] = OrderedDict()

    def find(self, reader: Reader) -> _Version | None:
        """Give the version that a reader is in the midst of, if it is in any."""
        mount = self._mounts.get(reader)
        if mount is None or not self._is_in_progress(mount):
            return None
        return mount.version

    def begin(self, reader: Reader, version: _Version, read_at: float | None = None) -> Mount[_Version]:
        """Note that a reader reads.

        Args:
            reader: who.
            version: what.
            read_at: when; None: now.

        Returns:
            its mount, whose ``answers`` the caller counts.
        """
        now = self._clock.seconds() if read_at is None else read_at
        mount = self._mounts.get(reader)
        if mount is None or (mount.version is not version and mount.version != version):
            mount = self._mounts[reader] = Mount(version, now)
        mount.read_at = max(mount.read_at, now)
        self._mounts.move_to_end(reader)
        while len(self._mounts) > MAX_MOUNTS:
            self._mounts.popitem(last=False)
        return mount

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
