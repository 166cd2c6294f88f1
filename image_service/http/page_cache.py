"""Disk reads kept out of the reactor: what is in the page cache is read at once, the rest in a thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twisted.internet.threads import deferToThreadPool

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorFromThreads
    from twisted.python.threadpool import ThreadPool

    from image_service.images.extents import BaseFile

READ_AHEAD_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 256 * 1024


class PageCache:
    """Tells whether the kernel holds a part of a file, and brings it there.

    Args:
        reactor: receives the results of the pool.
        pool: a few threads for disk reads and nothing else.
    """

    def __init__(self, reactor: IReactorFromThreads, pool: ThreadPool) -> None:
        self._reactor = reactor
        self._pool = pool
        self._probe = bytearray(1)

    def holds(self, file: BaseFile, offset: int, length: int) -> bool:
        """Whether sending these bytes would not wait for the disk.

        Looks at both ends only: the kernel reads ahead and evicts in runs. A file system that cannot
        tell (EOPNOTSUPP) is taken at its word: everything would be cold there.

        Args:
            file: an open file.
            offset: of the first byte.
            length: bytes, at least 1.

        Returns:
            True also behind the end of the file, where there is nothing to wait for.
        """
        return self._holds_byte(file, offset) and self._holds_byte(file, offset + length - 1)

    def _holds_byte(self, file: BaseFile, offset: int) -> bool:
        try:
            os.preadv(file.descriptor, [self._probe], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def read(self, file: BaseFile, offset: int, length: int) -> bytes | None:
        """Read without waiting for the disk.

        Args:
            file: an open file.
            offset: of the first byte.
            length: bytes at most.

        Returns:
            what the page cache holds, possibly less than ``length``; empty behind the end of the file;
            None: the first byte is not there.

        Raises:
            OSError: the disk failed.
        """
        buffer = bytearray(length)
        try:
            count = os.preadv(file.descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError:  # no RWF_NOWAIT here; a real fault shows again
            return os.pread(file.descriptor, length, offset)
        return bytes(memoryview(buffer)[:count])

    def load(self, file: BaseFile, offset: int, length: int) -> Deferred[None]:
        """Bring a part of a file into the page cache, and let the kernel begin with what follows it.

        Args:
            file: an open file.
            offset: of the first byte.
            length: bytes.

        Returns:
            fires when it is there; fails with OSError where the disk does.
        """
        return deferToThreadPool(self._reactor, self._pool, _read_through, file, offset, length)


def _read_through(file: BaseFile, offset: int, length: int) -> None:
    """The file comes with it, which is closed when nothing refers to it."""
    os.posix_fadvise(file.descriptor, offset, max(length, READ_AHEAD_BYTES), os.POSIX_FADV_WILLNEED)
    scratch = bytearray(min(length, _PIECE_BYTES))
    for position in range(offset, offset + length, len(scratch)):
        os.preadv(file.descriptor, [scratch], position)
