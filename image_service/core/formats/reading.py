"""Functions that read a file at an offset: the argument of every format reader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) to that many bytes; fewer only at the end of the file."""


@attrs.frozen
class Span:
    """A named run of bytes: a file in an image, or an area of it."""

    path: str  # in the image; of an area that is not a file, its name in messages
    offset: int  # bytes from the start of the image
    length: int

    def __str__(self) -> str:
        return f"{self.length} bytes at offset {self.offset} ({self.path})"


@attrs.frozen(eq=False)
class SpanReader:
    """Reads a span of an image by the span's own offsets, and nothing outside it."""

    read_at: ReadAt
    span: Span

    def __call__(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset`` of the span; FormatError if they are not all in it."""
        if offset + length > self.span.length:
            raise FormatError(
                f"{self.span.path} of {self.span.length} bytes is damaged:"
                f" it refers to {length} bytes at offset {offset}"
            )
        return read_exactly(self.read_at, self.span.offset + offset, length)


def read_exactly(read_at: ReadAt, offset: int, length: int) -> bytes:
    """Read ``length`` bytes at ``offset``; FormatError if the file ends before."""
    data = read_at(offset, length)
    if len(data) != length:
        raise FormatError(f"the file ends too soon: {len(data)} of {length} bytes at offset {offset}")
    return data


def check_inside(name: str, offset: int, length: int, limit: int) -> None:
    """Raise FormatError if an area extends beyond the ``limit`` bytes of ``name``."""
    if offset + length > limit or length < 0:
        raise FormatError(f"an area leaves {name} of {limit} bytes: {length} bytes at offset {offset}")


def check_disjoint(spans: Iterable[Span]) -> None:
    """Raise FormatError if two of the spans share a byte."""
    for one, other in pairwise(sorted(spans, key=lambda span: span.offset)):
        if one.offset + one.length > other.offset:
            raise FormatError(f"areas overlap: {one} and {other}")
