"""How base images become ready, as the catalog is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.concurrency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.images.base import BaseImage

DOWNLOADS = 2


@attrs.define
class CatalogOptions:
    """How base images become ready, and who is notified.

    Args:
        downloads: at the same time.
        backoff: delays of retries.
        ready_when_any: one ready image makes the service ready; else every image must have been attempted.
        derive: makes the files that images of a base need, like `DerivedImages.derive`; None: all are there.
        on_change: called when an image may have become ready, or unavailable.
        on_superseded: called with each base image that can no longer be found.
    """

    downloads: int = DOWNLOADS
    backoff: Backoff = attrs.field(factory=Backoff)
    ready_when_any: bool = False
    derive: Callable[[BaseImage], Awaitable[None] | None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    on_superseded: Callable[[BaseImage], None] = lambda _: None
