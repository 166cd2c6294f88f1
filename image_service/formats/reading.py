"""Reading a file at an offset: what every format reader takes instead of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from image_service.errors import FormatError

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) to that many bytes; fewer only at the end of the file."""


def read_exactly(read_at: ReadAt, offset: int, length: int) -> bytes:
    """Read ``length`` bytes at ``offset``.

    Raises:
        FormatError: the file ends before.
    """
    data = read_at(offset, length)
    if len(data) != length:
        raise FormatError(f"the file ends too soon: {len(data)} of {length} bytes at offset {offset}")
    return data
