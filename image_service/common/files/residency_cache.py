"""Regions of files that are read repeatedly: the page cache is asked about a whole region once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.base_file import BaseFile

REGION_BYTES = 4 * 1024 * 1024
VALID_SECONDS = 1.0
"""How long a finding stays valid: the kernel evicts pages that were not read lately."""
MAX_REGIONS = 16 * 1024


@attrs.define(eq=False)
class _Region:
    """A region that was read from.

    Args:
        file: its descriptor may be another file's by now.
        valid_until: when to ask again, seconds of the clock.
        is_resident: True if all of it was.
    """

    file: ref[BaseFile]
    valid_until: float
    is_resident: bool = False


class ResidencyCache:
    """Caches which regions are resident.

    Asking about a small range costs nearly as much as sending it. Asking about a region costs more, so only
    a region that is read from a second time is asked about.
    """

    def __init__(self, clock: IReactorTime, is_resident: Callable[[BaseFile, int, int], bool]) -> None:
        self._clock = clock
        self._is_resident = is_resident
        self._regions: dict[tuple[int, int], _Region] = {}

    def are_resident(self, file: BaseFile, offset: int, length: int) -> bool:
        """Return True if the bytes (at least 1) lie in a region that was resident a moment ago."""
        index, start = divmod(offset, REGION_BYTES)
        if start + length > REGION_BYTES:
            return False
        key, now = (file.descriptor, index), self._clock.seconds()
        region = self._regions.get(key)
        # Bounded on both sides: the clock may be set back.
        if (
            region is None
            or region.file() is not file
            or not -VALID_SECONDS <= now - region.valid_until < VALID_SECONDS
        ):
            if len(self._regions) >= MAX_REGIONS:
                self._regions.clear()
            self._regions[key] = _Region(ref(file), now)  # asked about at the next read, if that is soon
            return False
        if now >= region.valid_until:
            offset -= start
            region.is_resident = self._is_resident(file, offset, min(REGION_BYTES, file.size - offset))
            region.valid_until = now + VALID_SECONDS
        return region.is_resident
