"""Blocking work in threads."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

NICENESS = 10
"""Of threads that compute: at the reactor's own, requests took twice as long while an image was hashed."""


class InThread(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return the work's result once it is done; canceling that does not stop the work."""


def run_at_low_priority(work: Callable[[], T]) -> T:
    """Return the result of work, after lowering the present thread's priority for good."""
    with suppress(PermissionError):  # the process has a lower priority already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    return work()
