"""The validators of a boot image (RFC 9110 section 8.8), computed from its parts."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from image_service.images.extents import Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.images.extents import Overlay

COMPOSER_VERSION = 2
"""Part of every ETag; incremented whenever equal inputs come to make other bytes."""


def make_etag(identity: str, overlays: Iterable[Overlay]) -> str:
    """Return the strong validator of an image, quotes included.

    Args:
        identity: of the bytes below: digests of files, and how they are combined.
        overlays: the bytes above, in a fixed order.
    """
    digest = sha256(f"{COMPOSER_VERSION} {identity}".encode())
    for overlay in overlays:
        digest.update(f"\n{overlay.offset} {overlay.data.length} ".encode())
        if isinstance(overlay.data, Literal):
            digest.update(overlay.data.data)
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
