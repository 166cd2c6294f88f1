"""Runs of bytes with names, none of which may leave its place or lie over another."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class Span:
    """A run of bytes, by the name that messages call it."""

    name: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.length} bytes at offset {self.offset} ({self.name})"


def check_inside(name: str, offset: int, length: int, limit: int) -> None:
    """Refuse an area that leaves the ``limit`` bytes of ``name``.

    Raises:
        FormatError: it does.
    """
    if offset + length > limit or length < 0:
        raise FormatError(f"an embed area leaves {name} of {limit} bytes: {length} bytes at offset {offset}")


def check_disjoint(spans: Sequence[Span]) -> None:
    """Refuse spans of which two share a byte.

    Raises:
        FormatError: two do.
    """
    for one, other in pairwise(sorted(spans, key=lambda span: span.offset)):
        if one.offset + one.length > other.offset:
            raise FormatError(f"embed areas overlap: {one} and {other}")
