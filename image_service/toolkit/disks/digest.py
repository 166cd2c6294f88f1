"""SHA-256 of files; holes of a sparse file are not read from the disk."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from image_service.common.concurrency.signals import signals_deferred
from image_service.common.files.data_ranges import data_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

_BLOCK = 4 * 1024 * 1024
_ZEROS = memoryview(bytes(_BLOCK))


def sha256_of(descriptor: int, pace: Callable[[int], None]) -> str:
    """Return the SHA-256 of an open file, as sha256sum prints it.

    Args:
        descriptor: of a regular file or a block device.
        pace: such as `Workspace.pace`; gets the bytes of each piece; an exception of it ends the work.
    """
    digest = hashlib.sha256()
    size, position = os.lseek(descriptor, 0, os.SEEK_END), 0
    for start, length in [*data_ranges(descriptor), (size, 0)]:
        for at in range(position, start, _BLOCK):
            digest.update(_ZEROS[: start - at])
            pace(0)
        position = start
        while position < start + length:
            block = os.pread(descriptor, min(_BLOCK, start + length - position), position)
            if not block:
                raise OSError(f"the file became shorter than {size} bytes while it was read")
            digest.update(block)
            position += len(block)
            pace(len(block))
    return digest.hexdigest()


@contextmanager
def sha256_beside(descriptor: int, pace: Callable[[int], None]) -> Iterator[Future[str]]:
    """Compute `sha256_of` in a thread beside the block, which gets the future; a block that fails ends it."""
    failed = Event()

    def pace_or_end(count: int) -> None:
        if failed.is_set():
            raise CancelledError
        pace(count)

    with ThreadPoolExecutor(1) as thread:
        try:
            with signals_deferred():  # for the thread always: else the kernel hands it signals of others
                result = thread.submit(sha256_of, descriptor, pace_or_end)
            yield result
        except BaseException:
            failed.set()
            raise
