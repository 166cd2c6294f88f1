"""Signals that must not end a process, or not yet."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNUSED = (signal.SIGUSR1, signal.SIGUSR2)
"""Sent to services that reopen their log files, for example; the default is to end the process."""
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def handle_signal(number: int, handler: Callable[[], None]) -> None:
    """Call `handler` at each signal with this number, from now on, in the main thread."""
    signal.signal(number, lambda *_: handler())
    signal.siginterrupt(number, False)  # noqa: FBT003 - its signature. Libraries may not expect EINTR


def ignore_signals(*numbers: int) -> None:
    """Ignore signals; unlike with SIG_IGN, the programs that this process starts handle them as usual."""
    for number in numbers:
        handle_signal(number, lambda: None)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Let SIGHUP, SIGINT and SIGTERM wait until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
