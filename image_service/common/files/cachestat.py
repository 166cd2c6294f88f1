"""cachestat(2), which the standard library lacks: which pages of a file are in the page cache."""

from __future__ import annotations

import ctypes
import mmap

_NUMBER = 451  # on every architecture
_COUNTS = ("cached", "dirty", "in_writeback", "evicted", "recently_evicted")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _COUNTS)


_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_syscall.restype = ctypes.c_long
# Shared by all calls, which come from the reactor's thread: new ones would cost more than the call.
_range, _pages = _Range(), _Pages()
_range_at, _pages_at = ctypes.byref(_range), ctypes.byref(_pages)


def is_cached(descriptor: int, offset: int, length: int) -> bool | None:
    """Return True if every page of `length` (at least 1) bytes is cached, including pages still being read.

    Reads nothing and does not block. Not thread-safe.

    Returns:
        None if the kernel is older than Linux 6.5, or refuses because the file belongs to another user.
    """
    _range.offset, _range.length = offset, length
    if _syscall(_NUMBER, descriptor, _range_at, _pages_at, 0):
        return None
    pages = (offset + length - 1) // mmap.PAGESIZE - offset // mmap.PAGESIZE + 1
    cached: int = _pages.cached
    return cached >= pages
