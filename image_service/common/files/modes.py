"""The modes of files that only their owner may read, or also its group.

A container's user belongs to group 0, and the next container may have another uid and the same volume: files
of group 0 are for the group too.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_GROUP_UMASK = 0o007


def shares_files() -> bool:
    """Return True if the files of this process are for its group as for itself: a user's of group 0."""
    return os.getegid() == 0 != os.geteuid()


def share_files() -> None:
    """Let the group of this process write the files that it makes from now on, if `shares_files`."""
    if shares_files():
        os.umask(_GROUP_UMASK)


def private_mode(mode: int) -> int:
    """Return the mode of a private file or directory: its owner's, and the group's if that shares files."""
    return mode | (mode & stat.S_IRWXU) >> 3 if shares_files() else mode


def make_private_directory(path: Path) -> None:
    """Make a private directory and those above it, unless it exists.

    Raises:
        OSError: it cannot be made.
    """
    path.mkdir(mode=private_mode(stat.S_IRWXU), parents=True, exist_ok=True)
