"""Extents: the runs of bytes that a boot image is made of."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.files.base_file import BaseFile  # noqa: TC001 - attrs resolves annotations at run time

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class FileExtent:
    """``length`` bytes of a file from ``offset`` on."""

    file: BaseFile
    offset: int
    length: int

    def slice(self, start: int, stop: int) -> FileExtent:
        """The bytes from ``start`` up to ``stop``, counted from the extent's own beginning."""
        return FileExtent(self.file, self.offset + start, stop - start)


@attrs.frozen
class Literal:
    """Bytes held in memory."""

    data: bytes = attrs.field(repr=False)

    @property
    def length(self) -> int:
        """Bytes."""
        return len(self.data)

    def slice(self, start: int, stop: int) -> Literal:
        """The bytes from ``start`` up to ``stop``."""
        return Literal(self.data[start:stop])


@attrs.frozen
class Zeros:
    """``length`` zero bytes, which need no memory."""

    length: int

    def slice(self, start: int, stop: int) -> Zeros:
        """As many zeros as lie between ``start`` and ``stop``."""
        return Zeros(stop - start)


Extent: TypeAlias = FileExtent | Literal | Zeros


@attrs.frozen
class Overlay:
    """Bytes laid over an image at ``offset``."""

    offset: int
    data: Literal | Zeros

    @property
    def stop(self) -> int:
        """The offset just behind its last byte."""
        return self.offset + self.data.length


@attrs.frozen
class ExtentMap:
    """Extents in order, without gaps, so that a byte range is found by bisection.

    Args:
        extents: none of them empty.
    """

    extents: tuple[Extent, ...]
    _starts: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)

    @_starts.default
    def _count_starts(self) -> tuple[int, ...]:
        return tuple(accumulate((extent.length for extent in self.extents), initial=0))

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._starts[-1]

    @property
    def literal_bytes(self) -> int:
        """Bytes of it that are held in memory."""
        return sum(extent.length for extent in self.extents if isinstance(extent, Literal))

    def slice(self, start: int, stop: int) -> tuple[Extent, ...]:
        """The extents that make up the bytes from ``start`` up to ``stop``.

        Args:
            start: offset of the first byte, 0 <= start <= stop.
            stop: offset behind the last byte, stop <= size.

        Returns:
            extents whose lengths add up to ``stop - start``; none for an empty slice.
        """
        starts = self._starts
        index = bisect_right(starts, start) - 1
        if starts[index] < start < stop <= starts[index + 1]:  # as most ranges lie
            begin = starts[index]
            return (self.extents[index].slice(start - begin, stop - begin),)
        found: list[Extent] = []
        while start < stop:
            extent, begin, end = self.extents[index], starts[index], starts[index + 1]
            if start == begin and end <= stop:
                found.append(extent)
            else:
                found.append(extent.slice(start - begin, min(stop, end) - begin))
            start, index = end, index + 1
        return tuple(found)


def apply_overlays(below: ExtentMap, overlays: Sequence[Overlay]) -> ExtentMap:
    """Lay bytes over an image without changing its size.

    Args:
        below: the image.
        overlays: in any order; empty ones change nothing.

    Returns:
        the image with the overlays' bytes in place of its own.

    Raises:
        ValueError: overlays overlap or leave the image.
    """
    laid: list[Extent] = []
    position = 0
    for overlay in sorted(overlays, key=lambda overlay: overlay.offset):
        if not overlay.data.length:
            continue
        if overlay.offset < position:
            msg = f"overlay at {overlay.offset} begins before {position}, where the one before it ends"
            raise ValueError(msg)
        if overlay.stop > below.size:
            msg = f"overlay from {overlay.offset} to {overlay.stop} leaves the image of {below.size} bytes"
            raise ValueError(msg)
        laid += below.slice(position, overlay.offset)
        laid.append(overlay.data)
        position = overlay.stop
    laid += below.slice(position, below.size)
    return ExtentMap(tuple(laid))
