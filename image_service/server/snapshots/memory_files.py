"""Files in memory: each long literal of an image is in one, so that the kernel sends it without a copy."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, Literal, MemoryExtent

if TYPE_CHECKING:
    from image_service.core.extents import Extent

MIN_FILE_BYTES = 1024 * 1024
"""Shorter literals are copied."""
MAX_FILES = 64
"""Beyond it, literals are copied: descriptors are for connections."""

_files: weakref.WeakSet[LocalFile] = weakref.WeakSet()


def move_to_memory_files(extents: ExtentMap) -> ExtentMap:
    """Return the same bytes with each long literal in a file, which is closed when nothing refers to it."""
    return ExtentMap(tuple(_move(extent) for extent in extents.extents))


def _move(extent: Extent) -> Extent:
    if not isinstance(extent, Literal) or extent.length < MIN_FILE_BYTES or len(_files) >= MAX_FILES:
        return extent
    try:
        return MemoryExtent(_write(extent.data), 0, extent.length)
    except OSError:  # no descriptor is left, say: the literal stays one
        return extent


def _write(data: bytes) -> LocalFile:
    descriptor = os.memfd_create("literal")
    file = LocalFile(descriptor, len(data), "literal")
    weakref.finalize(file, os.close, descriptor)
    _files.add(file)
    position = 0
    while position < len(data):  # one write takes at most 2 GiB
        position += os.pwrite(descriptor, memoryview(data)[position:], position)
    return file
