"""The result of looking up what a mount reads, which further ranges use without another look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from image_service.images.boot_image import BootImage
    from image_service.snapshots.mounts import Mount
    from image_service.snapshots.versions import ComposedVersion


@attrs.frozen(eq=False)
class CachedLookup:
    """What a reader reads, while nothing has to be waited for.

    It does not keep the image in memory: the least recently used one is still evicted.

    Args:
        mount: of the reader.
        composed: what it reads.
        since: when this was looked up, the clock's seconds.
        until: when to look it up again at the latest.
        is_unchanged: False if another process has changed the mount or its snapshot.
    """

    mount: Mount
    _composed: ref[ComposedVersion]
    _since: float
    _until: float
    _is_unchanged: Callable[[], bool]

    def image(self, now: float) -> BootImage | None:
        """Return the image; None if something has changed, or if it is time to look again."""
        mount, composed = self.mount, self._composed()
        if not self._since <= now < self._until or composed is None or mount.is_over:
            return None
        snapshot = mount.version.snapshot
        if snapshot is not None and snapshot.is_ended:
            return None
        return composed.representation.image if self._is_unchanged() else None
