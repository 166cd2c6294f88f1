"""The data of a sparse file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of the data between the holes of an open file or block device, ascending."""
    size, end = os.lseek(descriptor, 0, os.SEEK_END), 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a block device, which has no holes
                yield end, size - end
            return  # the rest is a hole
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        yield start, end - start
