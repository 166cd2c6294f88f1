"""A child process with all its descendants: what they use, and their end; programs of killed calls."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree_of(pid: int) -> Iterator[int]:
    """Yield a process and its descendants, as far as they live."""
    yield pid
    # A child belongs to the thread that made it.
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield from tree_of(int(child))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants; shared pages count in each."""
    total = 0
    for member in tree_of(pid):
        with suppress(OSError, IndexError):
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1]) * _PAGE_BYTES
    return total


def transferred_bytes(pid: int) -> int:
    """Return the bytes that a process and its descendants have read or written so far."""
    total = 0
    for member in tree_of(pid):
        with suppress(OSError):
            fields = dict(line.split(": ") for line in Path(f"/proc/{member}/io").read_text().splitlines())
            total += max(int(fields["rchar"]), int(fields["wchar"]))
    return total


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, its group and its descendants."""
    members = list(tree_of(pid))
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for member in members:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(member, number)


def kill_programs_with_tmpdir(directory: Path) -> None:
    """Kill the processes whose TMPDIR is `directory` or in it; root finds those of all users.

    The end of a call by SIGKILL ends its programs, except one: bwrap's child waits without end if bwrap is
    killed between clone(2) and its first write to the child.
    """
    variable = b"\0TMPDIR=" + os.fsencode(directory)
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            process = os.pidfd_open(int(path.parent.name))
            try:
                environment = b"\0" + path.read_bytes()
                if variable + b"\0" in environment or variable + b"/" in environment:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)
