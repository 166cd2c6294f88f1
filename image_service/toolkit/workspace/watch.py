"""Watches a running program: its memory and its rate of I/O."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from image_service.toolkit.workspace.failures import memory_exceeded
from image_service.toolkit.workspace.process_tree import resident_bytes, signal_tree, transferred_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.toolkit.workspace.limits import Limits


class ProgramWatch:
    """Called with a program's process id while it runs; stops it while it is ahead of the rate of I/O.

    Args:
        name: of the program.
        limits: of memory and rate.
        check: raises if a limit of the whole call is exceeded.
    """

    def __init__(self, name: str, limits: Limits, check: Callable[[], None]) -> None:
        self._name = name
        self._limits = limits
        self._check = check
        self._started_at = time.monotonic()
        self._is_stopped = False

    def __call__(self, pid: int) -> None:
        """Raise NoRoom or TimedOut if the program must end."""
        self._check()
        memory, rate = self._limits.memory_bytes, self._limits.io_bytes_per_second
        if memory is not None and resident_bytes(pid) > memory:
            raise memory_exceeded(self._name, self._limits)
        if rate is not None:
            is_ahead = transferred_bytes(pid) > rate * (time.monotonic() - self._started_at)
            if is_ahead != self._is_stopped:
                signal_tree(pid, signal.SIGSTOP if is_ahead else signal.SIGCONT)
                self._is_stopped = is_ahead
