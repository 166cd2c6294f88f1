"""Keeps freed memory with the kernel, not with the process."""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_ARENA_MAX = -8
_MMAPPED_BYTES = 1024 * 1024
_ARENAS = 2


def return_large_blocks() -> None:
    """Let malloc map large blocks one by one, so that the kernel gets each back when it is freed.

    glibc raises the threshold to the largest block that was freed, up to 32 MiB: the configs of a few
    requests, each in several copies, would then stay in the heaps of the threads. Other libraries have no
    `mallopt`, or ignore it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MMAPPED_BYTES)
        mallopt(_ARENA_MAX, _ARENAS)
