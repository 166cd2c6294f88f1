"""The pinned version of a remote file as the block cache reads it: tried twice, each fault logged."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.interruption import Interrupted
from image_service.common.files.block_cache.source import (
    DigestMismatch,
    GranuleDigests,
    OriginChanged,
    OriginFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.catalog.remote.origin import RangeOrigin
    from image_service.server.catalog.storage.base_records import Pin

ATTEMPTS = 2
"""A connection that was cut is not a reason to abort a client's download."""
_log = Logger()


@attrs.frozen
class LoggedDigests(GranuleDigests):
    """The digests of an image's blocks; a block that has another one is logged."""

    image: str

    def check(self, granule: int, data: memoryview) -> None:
        """Raise `DigestMismatch` unless the content of a granule has its digest."""
        try:
            super().check(granule, data)
        except DigestMismatch as error:
            _log.warn("origin of base image {image}: {reason}", image=self.image, reason=error.strerror)
            raise


class PinnedSource:
    """Fetches bytes of one version (see `RangeSource`).

    Args:
        image: its name, for the log.
        on_changed: called in any thread when the origin has another version, perhaps repeatedly.
    """

    def __init__(self, origin: RangeOrigin, pin: Pin, image: str, on_changed: Callable[[], None]) -> None:
        self.origin = origin
        self.pin = pin
        self._image = image
        self._on_changed = on_changed
        self._lock = threading.Lock()
        self._is_changed = False
        self._refused_until = 0.0

    def fetch(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the version's bytes from `offset` on; see `RangeSource.fetch`."""
        for left in reversed(range(ATTEMPTS)):
            wait = self._refused_until - time.monotonic()
            if wait > 0:  # the origin has said when to come again
                raise OriginFailed(f"the origin of {self._image} is busy", retry_after_seconds=int(wait) + 1)
            try:
                self.origin.fetch(self.pin, offset, target)
            except OriginChanged as error:
                self._report_change(error)
                raise
            except OriginFailed as error:
                self._report_failure(error, offset)
                if not left:
                    raise
            except Interrupted:
                raise OriginFailed("the service is stopping") from None
            else:
                return

    def _report_failure(self, error: OriginFailed, offset: int) -> None:
        _log.warn(
            "origin of base image {image}: {reason} (bytes from {offset} on)",
            image=self._image,
            reason=error.strerror,
            offset=offset,
        )
        if error.retry_after_seconds > 1:
            self._refused_until = time.monotonic() + error.retry_after_seconds

    def _report_change(self, error: OriginChanged) -> None:
        with self._lock:
            is_new, self._is_changed = not self._is_changed, True
        if is_new:
            _log.warn("origin of base image {image}: {reason}", image=self._image, reason=error.strerror)
        self._on_changed()
