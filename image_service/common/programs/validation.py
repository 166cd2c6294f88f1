"""Checks files by programs; their messages are shown without words of the file, which may be secret."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.programs.interruptible import run_interruptibly
from image_service.common.programs.sandbox import ResourceLimits
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.common.concurrency.interruption import Interruption

_LIMITS = ResourceLimits(file_bytes=128 * 1024**2, cpu_seconds=20, address_space_bytes=4 * 1024**3)
_WALL_SECONDS = 30.0
_MAX_LENGTH = 300
_FILE = "/proc/self/fd/0"
_WORD = re.compile(r"(?i:\b(?:line|column) \d+)|[\w\\]+")


def find_fault(
    command: Sequence[str], pattern: str, content: bytes, interruption: Interruption
) -> str | None:
    """Return what a program has against a file; None: nothing. It blocks its thread.

    Words that the file has too, and those that may be escaped words of it, are replaced.

    Args:
        command: name of the program, found in PATH, and its arguments before that of the file.
        pattern: regular expression that finds the fault in the program's messages; its groups are returned.

    Raises:
        Unavailable: it did not check the file: it is not installed, cannot be run or takes too long.
        Interrupted: the service stops.
    """
    result = run_interruptibly(
        (*command, _FILE),
        interruption,
        stdin=content,
        reads=list(_environment_of(command[0])),
        environment={"TMPDIR": "/dev/shm"},  # noqa: S108 - in memory, because it may write a copy
        limits=_LIMITS,
        wall_seconds=_WALL_SECONDS,
    )
    if result.status == 0:
        return None
    found = re.search(pattern, result.messages)
    if found is None:
        raise Unavailable(f"{command[0]} exited with status {result.status} without a message about the file")
    return _without_words_of(content, ": ".join(filter(None, found.groups())))[:_MAX_LENGTH]


def _environment_of(name: str) -> Iterator[Path]:
    """Yield the virtual environment that a program is in, and that of its interpreter."""
    root = Path(shutil.which(name) or "/bin/sh").parents[1]
    if (root / "pyvenv.cfg").exists():
        yield root
        yield (root / "bin" / "python").resolve().parents[1]


def _without_words_of(content: bytes, message: str) -> str:
    words = set(re.findall(r"\w+", content.decode(errors="replace")))

    def shown(found: re.Match[str]) -> str:
        word = found[0]
        is_plain = word.isascii() and word.isalpha() and word not in words
        return word if is_plain or " " in word else "…"

    return "".join(filter(str.isprintable, _WORD.sub(shown, message)))
