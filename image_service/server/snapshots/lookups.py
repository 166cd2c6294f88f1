"""Results of looking up a version, which further ranges and repeated HEADs use without another lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from image_service.core.images.boot_image import BootImage
    from image_service.server.snapshots.mounts import Mount
    from image_service.server.snapshots.storage.snapshot import Snapshot
    from image_service.server.snapshots.versions import ComposedVersion


@attrs.frozen(eq=False)
class _Lookup:
    """A composed version and how long it is valid; a weak reference, so that it can still be evicted.

    Args:
        until: when to look it up again at the latest.
        is_unchanged: False if another process has changed the mount or its snapshot.
    """

    _composed: ref[ComposedVersion]
    _since: float
    _until: float
    _is_unchanged: Callable[[], bool]


@attrs.frozen(eq=False)
class CachedLookup(_Lookup):
    """What the reader of a mount reads, while nothing has to be waited for."""

    mount: Mount

    def image(self, now: float) -> BootImage | None:
        """Return the image, and record the read; None if something has changed, or a new lookup is due."""
        mount, composed = self.mount, self._composed()
        if not self._since <= now < self._until or composed is None or mount.is_over:
            return None
        snapshot = mount.version.snapshot
        if snapshot is not None and (validity := snapshot.validity) is not None and validity.is_refused:
            return None
        if not self._is_unchanged():
            return None
        mount.read_at = now
        return composed.representation.image


@attrs.frozen(eq=False)
class NewestLookup(_Lookup):
    """The newest version of what a request names, while nothing has to be waited for."""

    snapshot: Snapshot | None

    def image(self, now: float) -> BootImage | None:
        """Return the image; None if something has changed, or if it is time to look again."""
        composed, snapshot = self._composed(), self.snapshot
        if composed is None or not self._since <= now < self._until:
            return None
        if snapshot is not None:
            validity = snapshot.validity
            may_be_served = snapshot.is_newest and validity is not None and not validity.is_refused
            if not may_be_served or not self._is_unchanged():
                return None
        return composed.representation.image
