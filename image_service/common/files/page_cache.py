"""The page cache: which bytes of local files the kernel holds; the others are read in a thread first."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred, DeferredSemaphore, maybeDeferred
from twisted.internet.threads import deferToThreadPool

from image_service.common.files.cachestat import is_cached
from image_service.common.files.residency_cache import ResidencyCache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
    from twisted.python.threadpool import ThreadPool

    from image_service.core.base_file import BaseFile

READ_AHEAD_BYTES = 8 * 1024 * 1024
PROBE_BYTES = 64 * 1024
"""Distance between probes on kernels without cachestat."""
READ_BYTES = 128 * 1024
"""The bytes that the kernel usually reads at once."""
_PIECE_BYTES = 256 * 1024
_IN_MEMORY = frozenset({0x01021994, 0x858458F6})  # tmpfs and ramfs of linux/magic.h


class PageCache:
    """Knows whether the kernel holds a part of a file, and reads it into the page cache.

    Reads queue in order of arrival. No file system gets more than half of the threads, so that one that hangs
    does not stop the others.

    Args:
        reactor: receives the results of the pool.
        pool: a few threads for disk reads only.
    """

    def __init__(self, reactor: IReactorFromThreads, pool: ThreadPool) -> None:
        self._reactor = reactor
        self._pool = pool
        self._limits: dict[int, DeferredSemaphore] = defaultdict(
            partial(DeferredSemaphore, (pool.max + 1) // 2)
        )
        self._probe = [bytearray(1)]
        self._in_memory: WeakKeyDictionary[BaseFile, bool] = WeakKeyDictionary()
        # Several senders may wait for parts of a region, each of which the kernel reads in ascending order.
        self._regions = ResidencyCache(
            cast("IReactorTime", reactor), partial(self._holds, probe_bytes=READ_BYTES)
        )

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """Return how many of the bytes can be sent without waiting for the disk: all, or 0."""
        is_resident = (
            self._regions.are_resident(file, offset, length)
            or self._holds(file, offset, length)
            or self._is_in_memory(file)
        )
        return length if is_resident else 0

    def _holds(self, file: BaseFile, offset: int, length: int, probe_bytes: int = sys.maxsize) -> bool:
        """Return True if all pages are cached, and the last byte and one in `probe_bytes` have been read.

        Probes only pages that are cached: for an absent page the kernel would start to read and might block.
        """
        descriptor, last = file.descriptor, offset + length - 1
        cached = is_cached(descriptor, offset, length)
        if cached is False:
            return False
        probes: Iterable[int] = range(last, offset - 1, -probe_bytes)
        if cached is None:
            probes = (*range(offset, last, PROBE_BYTES), last)
        try:
            for position in probes:
                os.preadv(descriptor, self._probe, position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:  # a disk error recurs when the bytes are sent
            return error.errno != errno.EOPNOTSUPP
        return True

    def _is_in_memory(self, file: BaseFile) -> bool:
        """Return True for tmpfs and ramfs, which do not support the probes and hold everything."""
        found = self._in_memory.get(file)
        if found is None:
            status = (ctypes.c_ulong * 32)()  # fstatfs(2) fills f_type first
            ctypes.CDLL(None).fstatfs(file.descriptor, status)
            found = self._in_memory[file] = status[0] in _IN_MEMORY
        return found

    def read_into(self, buffer: memoryview, file: BaseFile, offset: int) -> int | None:
        """Read without waiting for the disk.

        Returns:
            how many bytes the page cache holds, possibly fewer than fit; 0 behind the end of the file;
            None if the first byte is absent, or the file system does not say.

        Raises:
            OSError: the disk failed.
        """
        try:
            return os.preadv(file.descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:  # a disk error recurs below
            if error.errno == errno.EOPNOTSUPP and not self._is_in_memory(file):
                return None
            return os.preadv(file.descriptor, [buffer], offset)

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Read bytes into the page cache, and have the kernel start on those that follow.

        May be canceled; the thread may not, and keeps its share of the pool until it is done.

        Raises:
            OSError: the disk failed.
        """
        limit = self._limits[os.fstat(file.descriptor).st_dev]
        await limit.acquire()
        read = partial(_read_through, file, offset, length)
        reading = maybeDeferred(deferToThreadPool, self._reactor, self._pool, read)

        def release(outcome: object) -> object:
            limit.release()
            return outcome

        reading.addBoth(release)
        result: Deferred[None] = Deferred()
        reading.chainDeferred(result)
        await result


def _read_through(file: BaseFile, offset: int, length: int) -> None:
    """Takes the file, not its descriptor, which is closed with the last reference to the file."""
    descriptor = file.descriptor
    os.posix_fadvise(descriptor, offset, max(length, READ_AHEAD_BYTES), os.POSIX_FADV_WILLNEED)
    scratch = bytearray(min(length, _PIECE_BYTES))
    for position in range(offset, offset + length, len(scratch)):
        os.preadv(descriptor, [scratch], position)
