"""Extents: the runs of bytes that a boot image consists of."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.base_file import BaseFile  # noqa: TC001 - attrs resolves annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterable


# Treat extents as frozen: attrs' frozen classes take three times as long to make, and each range makes one.
@attrs.define(unsafe_hash=True)
class FileExtent:
    """``length`` bytes of a file from ``offset`` on."""

    file: BaseFile
    offset: int
    length: int

    def slice(self, start: int, stop: int) -> FileExtent:
        """Return the bytes from ``start`` up to ``stop``, relative to the extent."""
        return FileExtent(self.file, self.offset + start, stop - start)


@attrs.define(unsafe_hash=True)
class Literal:
    """Bytes in memory; a slice of them is not a copy."""

    data: bytes | memoryview = attrs.field(repr=False)

    @property
    def length(self) -> int:
        """Bytes."""
        return len(self.data)

    def slice(self, start: int, stop: int) -> Literal:
        """Return the bytes from ``start`` up to ``stop``."""
        return Literal(memoryview(self.data)[start:stop])


@attrs.frozen
class Zeros:
    """``length`` zero bytes, which need no memory."""

    length: int

    def slice(self, start: int, stop: int) -> Zeros:
        """Return the zeros from ``start`` up to ``stop``."""
        return Zeros(stop - start)


Extent: TypeAlias = FileExtent | Literal | Zeros


@attrs.frozen
class Overlay:
    """Bytes that replace those of an image at ``offset``."""

    offset: int
    data: Literal | Zeros

    @property
    def stop(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.data.length


@attrs.frozen
class ExtentMap:
    """Consecutive extents, found by bisection."""

    extents: tuple[Extent, ...]  # none empty
    is_remote: bool = attrs.field(init=False, repr=False, eq=False)
    """True if bytes may be absent from the local disk."""
    _starts: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)

    @is_remote.default
    def _has_remote_file(self) -> bool:
        files = (extent.file for extent in self.extents if isinstance(extent, FileExtent))
        return any(file.residency is not None for file in files)

    @_starts.default
    def _count_starts(self) -> tuple[int, ...]:
        return tuple(accumulate((extent.length for extent in self.extents), initial=0))

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._starts[-1]

    @property
    def literal_bytes(self) -> int:
        """Bytes in memory."""
        return sum(extent.length for extent in self.extents if isinstance(extent, Literal))

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes; fewer than `length` only at the end. Blocks until those of files are resident."""
        stop = min(offset + length, self.size)
        return b"".join(_read(extent) for extent in self.slice(min(offset, stop), stop))

    def slice(self, start: int, stop: int) -> tuple[Extent, ...]:
        """Return the extents of the bytes from ``start`` up to ``stop``: 0 <= start <= stop <= size.

        Their lengths add up to ``stop - start``; an empty slice has none.
        """
        starts = self._starts
        index = bisect_right(starts, start) - 1
        if (begin := starts[index]) < start < stop <= starts[index + 1]:  # most ranges are inside one extent
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


def _read(extent: Extent) -> bytes:
    match extent:
        case FileExtent():
            return extent.file.read_at(extent.offset, extent.length)
        case Literal():
            return bytes(extent.data)
        case Zeros():
            return bytes(extent.length)


def apply_overlays(below: ExtentMap, overlays: Iterable[Overlay]) -> ExtentMap:
    """Return an image with overlays, given in any order, in place of its own bytes; of the same size.

    Raises:
        ValueError: overlays overlap or leave the image.
    """
    extents: list[Extent] = []
    position = 0
    for overlay in sorted(overlays, key=lambda overlay: overlay.offset):
        if not overlay.data.length:
            continue
        if overlay.offset < position:
            raise ValueError(
                f"overlay at {overlay.offset} begins before {position}, where the one before it ends"
            )
        if overlay.stop > below.size:
            raise ValueError(
                f"overlay from {overlay.offset} to {overlay.stop}"
                f" extends beyond the image of {below.size} bytes"
            )
        extents += below.slice(position, overlay.offset)
        extents.append(overlay.data)
        position = overlay.stop
    extents += below.slice(position, below.size)
    return ExtentMap(tuple(extents))
