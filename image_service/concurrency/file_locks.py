"""Locks that processes on one directory hold on names: each is one byte of one file, which need not exist.

They are open file description locks (fcntl(2)): they end with the process, however that ends; threads of one
process exclude each other by them too; and nothing has to be cleaned up, as a file per lock would.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.concurrency.interruption import Interruption

_POLL_SECONDS = 0.1  # there is no waiting for a lock that another thread could end
_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_PRESENCE = 0  # the byte that every process holds while it is there; names have the others


class FileLocks:
    """The locks of one directory.

    Args:
        path: of the file; is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self, name: str, interruption: Interruption) -> Iterator[None]:
        """Hold the lock of a name, after whoever holds it has given it back.

        Args:
            name: of what must not be touched by two.
            interruption: ends the wait from another thread.

        Yields:
            nothing.

        Raises:
            OSError: the file cannot be opened.
            Exception: what the interruption raises.
        """
        descriptor = self._open()
        try:
            while not _lock(descriptor, fcntl.F_WRLCK, _byte(name)):
                interruption.wait(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def tried(self, name: str) -> Iterator[bool]:
        """Hold the lock of a name unless somebody else holds it; tell which."""
        descriptor = self._open()
        try:
            yield _lock(descriptor, fcntl.F_WRLCK, _byte(name))
        finally:
            os.close(descriptor)

    def alone(self) -> int | None:
        """Be the only process that is present, if there is no other.

        Returns:
            a descriptor for ``present``; None: there is another.
        """
        descriptor = self._open()
        if _lock(descriptor, fcntl.F_WRLCK, _PRESENCE):
            return descriptor
        os.close(descriptor)
        return None

    def present(self, alone: int | None, interruption: Interruption) -> int:
        """Be present, as others may be too.

        Args:
            alone: of ``alone``.
            interruption: ends the wait for one that is alone.

        Returns:
            a descriptor; who closes it is gone.
        """
        descriptor = self._open() if alone is None else alone
        try:
            while not _lock(descriptor, fcntl.F_RDLCK, _PRESENCE):
                interruption.wait(_POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _byte(name: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])


def _lock(descriptor: int, kind: int, byte: int) -> bool:
    """Take a lock, in the place of one that the descriptor has; tell whether that could be."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True
