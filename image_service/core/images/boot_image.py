"""The boot image: the extents that one URL serves, and their validators (RFC 9110 section 8.8)."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.images.boot_areas import BootArea  # noqa: TC001 - attrs resolves annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.core.extents import Extent, Overlay

PLAIN = 2
"""In place of a layout's version in the ETags of images that need none. It never changes: replicas of two
releases serve them at once, and nothing is stored that could pin the version."""


@attrs.frozen(eq=False)
class BootImage:
    """One image."""

    extents: ExtentMap
    etag: str  # from `make_etag`
    modified: datetime | None  # from `last_modified`
    file_name: str  # the name under which a download is saved
    is_iso: bool = True  # firmware boots it as a medium
    is_public: bool = False  # it is the same for everyone
    content_type: str = "application/octet-stream"
    areas: tuple[BootArea, ...] = ()  # of an ISO: its parts that a machine reads while it boots
    doubts: tuple[str, ...] = ()  # why the kernel of a machine may not unpack all of it

    @property
    def size(self) -> int:
        """Bytes."""
        return self.extents.size


def make_etag(
    identity: str, overlays: Iterable[Overlay], layout_version: int = PLAIN, tail: Iterable[Extent] = ()
) -> str:
    """Return a strong validator, quotes included, the same in every process and every replica.

    Args:
        identity: of the bytes below: digests of files, and how they are combined.
        overlays: the bytes above, in a fixed order.
        tail: the bytes behind; those of files are the base's own.
    """
    digest = sha256(f"{layout_version} {identity}".encode())
    for overlay in overlays:
        digest.update(f"\n{overlay.offset} {overlay.data.length} ".encode())
        if isinstance(overlay.data, Literal):
            digest.update(overlay.data.data)
    for extent in tail:
        start = extent.offset if isinstance(extent, FileExtent) else ""
        digest.update(f"\n{start}+{extent.length} ".encode())
        if isinstance(extent, Literal):
            digest.update(extent.data)
    return f'"{digest.hexdigest()[:40]}"'


def last_modified(base: datetime | None, customization: datetime | None) -> datetime | None:
    """Return the later of both dates, UTC, whole seconds: a new base under an old config is a new image.

    Args:
        base: when the base was made; without a date it never makes an image older than its config.
        customization: when the config was changed; None: it may be of any age, so the image has no date.
    """
    if customization is None:
        return None
    later = customization if base is None else max(base, customization)
    return later.astimezone(UTC).replace(microsecond=0)
