"""Processes, as the kernel lists them."""

from __future__ import annotations

import os
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Return the children of a process that its main thread has started."""
    return [int(child) for child in _read(f"{pid}/task/{pid}/children").split()]


def exists(pid: int) -> bool:
    """Return True while there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def descendants(pid: int, command: str) -> list[int]:
    """Return the processes below a process whose command lines contain a text."""
    children = children_of(pid)
    below = [found for child in children for found in descendants(child, command)]
    return [child for child in children if command in _read(f"{child}/cmdline")] + below


def _read(path: str) -> str:
    """Return a file of a process; "": the process has ended."""
    try:
        return Path("/proc", path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
