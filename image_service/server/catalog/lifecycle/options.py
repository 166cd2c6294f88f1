"""How base images become ready, and what all of them share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.threads import deferToThreadPool

from image_service.common.concurrency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.defer import Deferred, DeferredSemaphore
    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
    from twisted.python.threadpool import ThreadPool

    from image_service.common.files.open_files import OpenFiles
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher

T = TypeVar("T")

DOWNLOADS = 2


@attrs.define
class CatalogOptions:
    """How base images become ready, and who is notified.

    Args:
        downloads: at the same time.
        backoff: delays of retries.
        ready_when_any: one ready image makes the service ready; else every image must have been attempted.
        logs_progress: whether states that need no attention are logged; else they are for debugging only.
        tells_reasons: whether errors for clients say why an image is not served; else another listener does.
        derive: makes the files that images of a base need, like `DerivedImages.derive`; None: all are there.
        on_change: called when an image may have become ready, or unavailable.
        on_superseded: called with each base image that can no longer be found.
        other_names: returns the names in ``DATA_DIR`` of files that others need.
        now: the present time, in UTC.
    """

    downloads: int = DOWNLOADS
    backoff: Backoff = attrs.field(factory=Backoff)
    ready_when_any: bool = False
    logs_progress: bool = True
    tells_reasons: bool = True
    derive: Callable[[BaseImage], Awaitable[None] | None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    on_superseded: Callable[[BaseImage], None] = lambda _: None
    other_names: Callable[[], set[str]] = set
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


@attrs.frozen(eq=False)
class LifecycleDependencies:
    """What all base images share. The semaphores limit how many run at a time.

    Args:
        keep: keeps a base image in whose place another version is served.
    """

    reactor: IReactorFromThreads
    clock: IReactorTime
    pool: ThreadPool
    downloads: DeferredSemaphore
    verifications: DeferredSemaphore
    rechecks: DeferredSemaphore
    pins: DeferredSemaphore
    fetcher: ImageFetcher
    files: OpenFiles
    options: CatalogOptions
    keep: Callable[[BaseImage], None]

    def run_in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        """Run work in the pool."""
        return deferToThreadPool(self.reactor, self.pool, work)
