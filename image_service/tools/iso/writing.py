"""Writes the bytes of an image to a descriptor, sharing blocks with the base image where it can."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.core.errors import BaseImageError
from image_service.core.extents import FileExtent, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.extents import Extent, ExtentMap

CHUNK_BYTES = 4 * 1024 * 1024


def write_extents(extents: ExtentMap, target: int, on_written: Callable[[int], object]) -> None:
    """Write the extents to a descriptor in chunks.

    Chunks of a file end at multiples of the chunk size in the file: file systems that share blocks
    between files can share whole blocks only.

    Args:
        on_written: called with the number of bytes that were written each time.

    Raises:
        BaseImageError: an extent's file cannot be read, or became shorter.
        OSError: the target cannot be written.
    """
    for extent in extents.extents:
        offset = extent.offset if isinstance(extent, FileExtent) else 0
        position, stop = offset, offset + extent.length
        while position < stop:
            end = min(position - position % CHUNK_BYTES + CHUNK_BYTES, stop)
            written = _write_chunk(extent.slice(position - offset, end - offset), target)
            position += written
            on_written(written)


def _write_chunk(chunk: Extent, target: int) -> int:
    """Write at least one byte of a chunk; return how many."""
    if not isinstance(chunk, FileExtent):
        write_all(chunk.data if isinstance(chunk, Literal) else bytes(chunk.length), target)
        return chunk.length
    # Not all file systems and targets support it; a real error shows below.
    with suppress(OSError), chunk.file.hold(chunk.offset, chunk.length):
        copied = os.copy_file_range(chunk.file.descriptor, target, chunk.length, chunk.offset)
        if copied:
            return copied
    where = f"{chunk.file.path} at offset {chunk.offset}"
    try:
        data = chunk.file.read_at(chunk.offset, chunk.length)
    except OSError as error:
        raise BaseImageError(f"{where}: {error.strerror}") from None
    if not data:
        raise BaseImageError(f"{where}: the file became shorter than its {chunk.file.size} bytes")
    write_all(data, target)
    return len(data)


def write_all(data: bytes | memoryview, target: int) -> None:
    """Write all bytes to a descriptor, which may take fewer at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
