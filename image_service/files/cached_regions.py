"""Regions of files that are read from again and again: all of one is asked about once, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.files.base_file import BaseFile

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
        is_resident: whether all of it was present.
    """

    file: ref[BaseFile]
    until: float
    is_resident: bool = False


class CachedRegions:
    """Remembers which regions are present.

    To ask about a small range costs nearly as much as to send it. To ask about a region costs more, so that
    is done for those alone that are read from for the second time.

    Args:
        clock: tells the time.
        is_resident: looks at an extent.
    """

    def __init__(self, clock: IReactorTime, is_resident: Callable[[BaseFile, int, int], bool]) -> None:
        self._clock = clock
        self._is_resident = is_resident
        self._regions: dict[tuple[int, int], _Region] = {}

    def are_resident(self, file: BaseFile, offset: int, length: int) -> bool:
        """Tell whether an extent lies in a region that was present a moment ago.

        Args:
            file: an open file.
            offset: of the first byte.
            length: bytes, at least 1.

        Returns:
            False: perhaps it is not, and it has to be looked at itself.
        """
        index, start = divmod(offset, REGION_BYTES)
        if start + length > REGION_BYTES:
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
            offset -= start
            region.is_resident = self._is_resident(file, offset, min(REGION_BYTES, file.size - offset))
            region.until = now + LASTING_SECONDS
        return region.is_resident

    def _begin(self, place: tuple[int, int], file: BaseFile, now: float) -> None:
        """Look at a region when it is read from the next time, if that is soon."""
        if len(self._regions) >= MAX_REGIONS:
            self._regions.clear()
        self._regions[place] = _Region(ref(file), now)
