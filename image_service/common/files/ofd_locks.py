"""Open file description locks (fcntl(2)): on ranges of bytes, released when the description is closed."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid
SHARED, EXCLUSIVE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


def try_lock(descriptor: int, kind: int, start: int, length: int = 1) -> bool:
    """Replace the lock of a description on a range; False if the lock of another one conflicts."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(kind, start, length))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True


def lock(descriptor: int, kind: int, start: int, length: int = 1) -> None:
    """Wait for a lock. Nothing interrupts the wait: only for locks that are held for a moment."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _flock(kind, start, length))


def is_locked(descriptor: int, start: int) -> bool:
    """Return True if another description has a lock on a byte."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(EXCLUSIVE, start, 1))
    kind: int = struct.unpack(_FLOCK, found)[0]
    return kind != NONE


def reopen(descriptor: int) -> int:
    """Return another description, for reading and writing, of the same file, whatever its name is now."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
