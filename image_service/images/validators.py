"""The validators of a boot image (RFC 9110 section 8.8), made from what it is composed of."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from image_service.images.extents import Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.images.extents import Overlay

COMPOSER_VERSION = 2
"""Part of every ETag. It grows whenever the same inputs come to make other bytes."""


def make_etag(identity: str, overlays: Iterable[Overlay]) -> str:
    """Make the strong validator of an image.

    Args:
        identity: tells the bytes below from all others: digests of files, and how they are put together.
        overlays: what lies over them, in a fixed order.

    Returns:
        an entity tag, quotes included.
    """
    hashed = sha256(f"{COMPOSER_VERSION} {identity}".encode())
    for overlay in overlays:
        hashed.update(f"\n{overlay.offset} {overlay.data.length} ".encode())
        if isinstance(overlay.data, Literal):
            hashed.update(overlay.data.data)
    return f'"{hashed.hexdigest()[:40]}"'


def last_modified(base: datetime | None, customization: datetime | None) -> datetime | None:
    """Give the later of both dates: a new base under an old config is a new image.

    Args:
        base: when the base was made; without a date it cannot make an image older than its config is.
        customization: when the config was changed; None: it could be of any age, so there is no date.

    Returns:
        UTC, whole seconds.
    """
    if customization is None:
        return None
    later = customization if base is None else max(base, customization)
    return later.astimezone(UTC).replace(microsecond=0)
