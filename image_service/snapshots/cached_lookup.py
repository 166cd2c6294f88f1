"""The result of looking up what a mount reads, which further ranges use without another look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

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
        is_unchanged: whether no other process has changed the mount or its snapshot.
    """

    mount: Mount[Version]
    _composed: ref[Composed]
    _since: float
    _until: float
    _is_unchanged: Callable[[], bool]

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
        return composed.representation.image if self._is_unchanged() else None
