"""Block caches for tests: several on one directory are like several processes, except that none is killed."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from twisted.internet.task import Clock

from image_service.common.files.block_cache.block_cache import BlockCache
from image_service.common.files.block_cache.version_files import VersionFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile

MIB = 1024 * 1024
SMALLEST = 128 * MIB


@contextmanager
def open_cache(directory: Path, max_bytes: int = SMALLEST) -> Iterator[BlockCache]:
    """Open a cache whose process has no senders."""
    cache = BlockCache(directory, max_bytes, Clock())
    try:
        yield cache
    finally:
        cache.close()


@contextmanager
def temporary_cache(max_bytes: int = SMALLEST) -> Iterator[BlockCache]:
    """Open a cache in a new directory on tmpfs, for hypothesis: examples share no fixture."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        with open_cache(directory, max_bytes) as cache:
            yield cache
    finally:
        shutil.rmtree(directory)


def present(file: BaseFile) -> list[int]:
    """Return the granules that are present."""
    with opened(file) as files:
        return [granule for granule, state in enumerate(files.present) if state == 1]


@contextmanager
def opened(file: BaseFile) -> Iterator[VersionFiles]:
    """Open the files of a version as another process does."""
    files = VersionFiles(Path(file.path).parent)
    try:
        yield files
    finally:
        files.close()
