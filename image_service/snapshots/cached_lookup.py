"""The result of looking up what a mount reads, which further ranges use without another look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from weakref import ref

    from image_service.concurrency.version_counters import VersionCounters
    from image_service.images.boot_image import BootImage
    from image_service.snapshots.mounts import Mount
    from image_service.snapshots.versions import Composed, Version


@attrs.frozen(eq=False)
class CachedLookup:
    """What a reader reads on with, for as long as nobody need be asked.

    It holds no image: of those that are composed, the least recently used still gives way.

    Args:
        mount: of the reader.
        composed: what it reads.
        since: when it began, the clock's seconds.
        until: when to ask again at the latest.
        stamps: of readers and of questions.
        noted: those of the mount and of its snapshot.
    """

    mount: Mount[Version]
    _composed: ref[Composed]
    _since: float
    _until: float
    _stamps: VersionCounters
    _noted: tuple[tuple[int, int], ...]

    def image(self, now: float) -> BootImage | None:
        """Give what is read.

        Args:
            now: the clock's seconds.

        Returns:
            None: something has changed, or it is time to ask.
        """
        mount, composed = self.mount, self._composed()
        if not self._since <= now < self._until or composed is None or mount.is_over:
            return None
        snapshot = mount.version.snapshot
        if snapshot is not None and snapshot.tenure.ended:
            return None
        if self._noted and not self._stamps.are_as(self._noted):
            return None
        return composed.representation.image
