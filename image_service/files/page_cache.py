"""The page cache: which bytes of local files the kernel holds, and reading the others in a thread."""

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

from image_service.files.cached_regions import CachedRegions
from image_service.files.cachestat import is_cached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
    from twisted.python.threadpool import ThreadPool

    from image_service.files.base_file import BaseFile

READ_AHEAD_BYTES = 8 * 1024 * 1024
PROBE_BYTES = 64 * 1024
"""How far apart the kernel is asked where it has no cachestat."""
READ_BYTES = 128 * 1024
"""What the kernel reads at once as a rule."""
_PIECE_BYTES = 256 * 1024
_IN_MEMORY = frozenset({0x01021994, 0x858458F6})  # the types of tmpfs and ramfs in linux/magic.h


class PageCache:
    """Tells whether the kernel holds a part of a file, and brings it there.

    Everybody who waits has one read in the queue, and its turn after those who came before. No file
    system gets more than half of the threads: one that hangs keeps the others from nothing.

    Args:
        reactor: receives the results of the pool.
        pool: a few threads for disk reads and nothing else.
    """

    def __init__(self, reactor: IReactorFromThreads, pool: ThreadPool) -> None:
        self._reactor = reactor
        self._pool = pool
        self._turns: dict[int, DeferredSemaphore] = defaultdict(
            partial(DeferredSemaphore, (pool.max + 1) // 2)
        )
        self._probe = [bytearray(1)]
        self._in_memory: WeakKeyDictionary[BaseFile, bool] = WeakKeyDictionary()
        self._regions = CachedRegions(cast("IReactorTime", reactor), self._holds_region)

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """Return how many of the bytes at `offset` can be sent without waiting for the disk: all, or 0.

        Args:
            file: an open file.
            offset: of the first byte.
            length: bytes, at least 1.
        """
        is_resident = (
            self._regions.are_resident(file, offset, length)
            or self._holds(file, offset, length)
            or self._is_in_memory(file)
        )
        return length if is_resident else 0

    def _holds_region(self, file: BaseFile, offset: int, length: int) -> bool:
        """Whether every page is there, and those that are looked at have been read.

        Several readers may be waiting for parts of it, each of which is read in ascending order.
        """
        return self._holds(file, offset, length, READ_BYTES)

    def _holds(self, file: BaseFile, start: int, length: int, read_bytes: int = sys.maxsize) -> bool:
        """Whether every page is there, and the last one has been read, as well as one in every so many bytes.

        The kernel reads in ascending order, and what is not there is never asked for here: to ask would
        make the kernel begin to read, for which it may have to wait.
        """
        descriptor, last = file.descriptor, start + length - 1
        cached = is_cached(descriptor, start, length)
        if cached is False:
            return False
        probes: Iterable[int] = range(last, start - 1, -read_bytes)
        if cached is None:
            probes = (*range(start, last, PROBE_BYTES), last)
        try:
            for offset in probes:
                os.preadv(descriptor, self._probe, offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:  # a real fault shows again
            return error.errno != errno.EOPNOTSUPP
        return True

    def _is_in_memory(self, file: BaseFile) -> bool:
        """Whether there is no disk below; those file systems cannot tell what they hold, which is all."""
        found = self._in_memory.get(file)
        if found is None:
            found = self._in_memory[file] = _file_system_type(file.descriptor) in _IN_MEMORY
        return found

    def read_into(self, buffer: memoryview, file: BaseFile, offset: int) -> int | None:
        """Read without waiting for the disk.

        Args:
            buffer: for the bytes.
            file: an open file.
            offset: of the first byte.

        Returns:
            how many the page cache holds, possibly less than fit; 0 behind the end of the file;
            None: the first byte is not there, or nobody can tell.

        Raises:
            OSError: the disk failed.
        """
        try:
            return os.preadv(file.descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:  # a real fault shows again
            if error.errno == errno.EOPNOTSUPP and not self._is_in_memory(file):
                return None
            return os.preadv(file.descriptor, [buffer], offset)

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Read bytes into the page cache, and have the kernel start on those that follow.

        Raises:
            OSError: the disk failed.
        """
        turns = self._turns[os.fstat(file.descriptor).st_dev]
        await turns.acquire()
        await self._read_in_thread(partial(_read_through, file, offset, length), turns)

    def _read_in_thread(self, read: Callable[[], None], turns: DeferredSemaphore) -> Deferred[None]:
        """What is returned may be cancelled, the thread may not: it keeps its turn until it is done."""
        reading = maybeDeferred(deferToThreadPool, self._reactor, self._pool, read)
        reading.addBoth(_give_back, turns)
        told: Deferred[None] = Deferred()
        reading.chainDeferred(told)
        return told


def _give_back(result: object, turns: DeferredSemaphore) -> object:
    turns.release()
    return result


def _read_through(file: BaseFile, offset: int, length: int) -> None:
    """Holds a reference to the file, which is closed when nothing refers to it."""
    descriptor = file.descriptor
    os.posix_fadvise(descriptor, offset, max(length, READ_AHEAD_BYTES), os.POSIX_FADV_WILLNEED)
    scratch = bytearray(min(length, _PIECE_BYTES))
    for position in range(offset, offset + length, len(scratch)):
        os.preadv(descriptor, [scratch], position)


def _file_system_type(descriptor: int) -> int:
    """The type in what fstatfs(2) gives, whose first field it is; 0 where it gives nothing."""
    found = (ctypes.c_ulong * 32)()
    ctypes.CDLL(None).fstatfs(descriptor, found)
    return found[0]
