"""Which byte layouts the replicas have that share a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unavailable
from image_service.core.images.layouts import LAYOUTS, newest_layout, oldest_layout
from image_service.server.snapshots.storage.snapshot import VersionLost

if TYPE_CHECKING:
    from collections.abc import Collection

    from image_service.core.images.layouts import ByteLayout


class LayoutMissing(Unavailable):
    """A later release has made the image; another replica has that release."""

    must_close = True

    def __init__(self) -> None:
        super().__init__("a replica of a later release serves this image", retry_after_seconds=1)


@attrs.define
class SharedLayouts:
    """Which layouts the replicas have that share the repository; at first as if there were this one alone.

    Args:
        common: the newest that all of them have; new snapshots get it.
        latest: the newest that any of them has.
    """

    common: int = attrs.field(factory=lambda: newest_layout().version)
    latest: int = attrs.field(factory=lambda: newest_layout().version)

    def record(self, newest: Collection[int]) -> None:
        """Record the newest layout of each replica that was seen."""
        self.common = max(min(newest), oldest_layout().version)
        self.latest = max(newest)

    def all_have(self, version: int) -> bool:
        """Return True if any replica can compose what has this layout."""
        return version in LAYOUTS and version <= self.common

    def get(self, version: int) -> ByteLayout:
        """Return a layout; raises `LayoutMissing` if another replica has it, else `VersionLost`."""
        if version in LAYOUTS:
            return LAYOUTS[version]
        if newest_layout().version < version <= self.latest:
            raise LayoutMissing
        raise VersionLost
