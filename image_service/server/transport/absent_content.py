"""Before the head of a response: waits until the beginning of its content is on a local disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from image_service.common.files.block_cache.source import OriginFailed
from image_service.core.errors import Unavailable
from image_service.core.extents import FileExtent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.extents import Extent

BEGINNING_BYTES = 1024 * 1024
WAIT_SECONDS = 2.5
"""Since the request: clients get a response within 3 s."""
RETRY_AFTER_SECONDS = 1


def find_absent(body: Iterable[Extent]) -> FileExtent | None:
    """Return an extent of the beginning of a content that is not present as a whole, cut to the beginning."""
    rest = BEGINNING_BYTES
    for extent in body:
        length = extent.length
        if isinstance(extent, FileExtent):
            file = extent.file
            if file.residency is not None and not file.residency.is_present(
                file, extent.offset, min(length, rest)
            ):
                return extent.slice(0, min(length, rest))
        rest -= length
        if rest <= 0:
            break
    return None


async def await_beginning(body: Iterable[Extent], clock: IReactorTime, deadline: float) -> None:
    """Wait until the beginning of a content is present.

    Raises:
        Unavailable: it is not at the deadline, by the clock, or cannot be fetched. Fetching goes on.
    """
    while (extent := find_absent(body)) is not None:
        file = extent.file
        assert file.residency is not None  # noqa: S101 - only such an extent is absent
        fetching = Deferred.fromCoroutine(file.residency.prefetch(file, extent.offset, extent.length))
        fetching.addTimeout(max(0.0, deadline - clock.seconds()), clock, _too_slow)
        try:
            await fetching
        except OriginFailed as error:
            detail = f"the origin of the base image failed: {error.strerror}"
            raise Unavailable(detail, retry_after_seconds=error.retry_after_seconds) from error
        except OSError as error:
            detail = f"the block cache failed: {error.strerror}"
            raise Unavailable(detail, retry_after_seconds=RETRY_AFTER_SECONDS) from error


def _too_slow(_: object, __: float) -> NoReturn:
    raise Unavailable("the origin is slow; fetching goes on", retry_after_seconds=RETRY_AFTER_SECONDS)
