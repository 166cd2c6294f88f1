"""Regions of files that are read from again and again: all of one is asked about once, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import attrs

from image_service.images.extents import FileExtent

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.images.extents import BaseFile

REGION_BYTES = 4 * 1024 * 1024
LASTING_SECONDS = 1.0
"""How long a region is taken to stay as it was found: the kernel lets go of what nobody has read lately."""
MAX_REGIONS = 16 * 1024


@attrs.define(eq=False)
class _Region:
    """A region that somebody has read from.

    Args:
        file: whose; its descriptor may be another's by now.
        until: when to look again, the clock's seconds.
        is_present: whether all of it was present.
    """

    file: ref[BaseFile]
    until: float
    is_present: bool = False


class Regions:
    """Remembers which regions are present.

    To ask about a small range costs nearly as much as to send it. To ask about a region costs more, so that
    is done for those alone that are read from for the second time.

    Args:
        clock: tells the time.
        is_present: looks at an extent.
    """

    def __init__(self, clock: IReactorTime, is_present: Callable[[FileExtent], bool]) -> None:
        self._clock = clock
        self._is_present = is_present
        self._regions: dict[tuple[int, int], _Region] = {}

    def are_present(self, extent: FileExtent) -> bool:
        """Tell whether an extent lies in a region that was present a moment ago.

        Args:
            extent: not empty.

        Returns:
            False: perhaps it is not, and it has to be looked at itself.
        """
        file = extent.file
        index, start = divmod(extent.offset, REGION_BYTES)
        if start + extent.length > REGION_BYTES:
            return False
        place, now = (file.descriptor, index), self._clock.seconds()
        region = self._regions.get(place)
        # On both sides: the clock may be set back.
        if (
            region is None
            or region.file() is not file
            or not -LASTING_SECONDS <= now - region.until < LASTING_SECONDS
        ):
            self._begin(place, file, now)
            return False
        if now >= region.until:
            offset = extent.offset - start
            whole = FileExtent(file, offset, min(REGION_BYTES, file.size - offset))
            region.is_present, region.until = self._is_present(whole), now + LASTING_SECONDS
        return region.is_present

    def _begin(self, place: tuple[int, int], file: BaseFile, now: float) -> None:
        """Look at a region when it is read from the next time, if that is soon."""
        if len(self._regions) >= MAX_REGIONS:
            self._regions.clear()
        self._regions[place] = _Region(ref(file), now)
