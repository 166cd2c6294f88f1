"""How programs end: a watch that ends one at a limit of the call, and the error that a failure stands for."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

from image_service.common.command_line.parser import printable
from image_service.common.programs.process_tree import resident_bytes, signal_tree, transferred_bytes
from image_service.core.errors import ConversionFailed, ImageServiceError, NoRoom, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.common.programs.program import ProgramResult
    from image_service.toolkit.workspace.limits import Limits

_MESSAGE_CHARACTERS = 500
_FULL = re.compile("No space left on device|Disk quota exceeded")
_TOO_LARGE = "File too large"


class ProgramWatch:
    """Called with a program's process id while it runs; stops it while it is ahead of the rate of I/O.

    Args:
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


def failure_of(
    name: str, result: ProgramResult, limits: Limits, words: Mapping[str, str]
) -> ImageServiceError:
    """Return what to raise for a program that failed.

    Args:
        words: private paths, and what a user reads for them.
    """
    number = -result.status
    if number == signal.SIGXCPU:
        return TimedOut(f"{name} took more than {limits.cpu_seconds} s of CPU time (--cpu)")
    message = _readable(result.messages, words)
    if number == signal.SIGXFSZ or _TOO_LARGE in result.messages:
        if limits.scratch_bytes is None:
            return NoRoom(f"{name}: the file system takes no file of that size: {message}")
        return NoRoom(f"{name} has to write more than {limits.scratch_bytes} bytes (--scratch-bytes)")
    if _FULL.search(result.messages):
        return NoRoom(f"{name}: the file system is full: {message}")
    ending = f"was killed by signal {number}" if number > 0 else f"exited with status {result.status}"
    return ConversionFailed(f"{name} {ending}: {message or 'it printed no message'}")


def _readable(messages: str, words: Mapping[str, str]) -> str:
    """Return the end of a program's messages on one line, without private paths."""
    for path in sorted(words, key=len, reverse=True):
        messages = messages.replace(path, words[path])
    line = printable("; ".join(filter(None, (line.strip() for line in messages.splitlines()))))
    return line if len(line) <= _MESSAGE_CHARACTERS else f"… {line[-_MESSAGE_CHARACTERS:]}"


def memory_exceeded(name: str, limits: Limits) -> NoRoom:
    """Return what to raise for a program that was ended because of its memory."""
    return NoRoom(f"{name} used more than {limits.memory_bytes} bytes of memory (--memory)")
