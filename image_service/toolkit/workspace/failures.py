"""The error that a failed program stands for, in words for the user."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from image_service.common.command_line.parser import STATUS_OF_SIGNALS, printable
from image_service.core.errors import ConversionFailed, ImageServiceError, NoRoom, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.toolkit.workspace.limits import Limits
    from image_service.toolkit.workspace.program import ProgramResult

_MESSAGE_CHARACTERS = 500
_FULL = re.compile("No space left on device|Disk quota exceeded")
_TOO_LARGE = "File too large"


def failure_of(
    name: str, result: ProgramResult, limits: Limits, words: Mapping[str, str]
) -> ImageServiceError:
    """Return what to raise for a program that failed.

    Args:
        name: of the program.
        result: of its run.
        limits: that it had.
        words: private paths, and what a user reads for them.
    """
    number = -result.status if result.status < 0 else result.status - STATUS_OF_SIGNALS
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
