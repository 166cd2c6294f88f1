"""Lets the kernel write a file to the disk while it is made: the sync at its end takes less time then."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING

from image_service.common.concurrency.signals import signals_deferred
from image_service.common.files.data_ranges import data_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAUSE_SECONDS = 0.05
_PIECE_BYTES = 32 << 20  # of a system call: a slow disk may delay it, and the end of the block waits for it
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begin to write, and do not wait
_sync_file_range = ctypes.CDLL(None).sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


@contextmanager
def written_back(path: Path) -> Iterator[None]:
    """Write a file to the disk while the block makes it; errors of the disk are left to a later sync."""
    ended = Event()
    with ThreadPoolExecutor(1) as thread:
        with signals_deferred():  # for the thread always: else the kernel hands it signals of others
            writing = thread.submit(_write_back, path, ended)
        try:
            yield
        finally:
            ended.set()
        writing.result()


def _write_back(path: Path, ended: Event) -> None:
    while not ended.wait(_PAUSE_SECONDS):
        with suppress(OSError):  # such as: it is being replaced
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for start, length in data_ranges(descriptor):
                    for offset in range(start, start + length, _PIECE_BYTES):
                        if ended.is_set():
                            return
                        piece = min(_PIECE_BYTES, start + length - offset)
                        _sync_file_range(descriptor, offset, piece, _WRITE)
            finally:
                os.close(descriptor)
