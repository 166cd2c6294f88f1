"""Lines on standard error; in the journal each begins with its priority, as sd-daemon(3) says."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

PRIORITIES = {"debug": 7, "info": 6, "warn": 4, "error": 3, "critical": 2}
"""Of syslog, by level of the log."""


def is_journal(stream: TextIO | None, journal_stream: str | None) -> bool:
    """Return True if a stream is the one that `JOURNAL_STREAM` names as `device:inode` (systemd.exec(5))."""
    if not journal_stream or stream is None:
        return False
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # it is not a file
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"


def tell(text: str, level: str = "error") -> None:
    """Print lines to standard error, in one piece."""
    prefix = f"<{PRIORITIES[level]}>" if is_journal(sys.stderr, os.environ.get("JOURNAL_STREAM")) else ""
    lines = (f"{prefix}{line}\n" for line in text.split("\n"))
    print("".join(lines), end="", file=sys.stderr, flush=True)  # noqa: T201 - here and for data
