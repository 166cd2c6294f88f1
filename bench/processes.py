"""CPU time and memory of the processes of a server, as the kernel counts them."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CPU_CLOCK_OF_PROCESS = 2  # Linux: of all its threads, exited ones included
_PSS = re.compile(r"^Pss: +([0-9]+) kB", re.MULTILINE)
_SOCKET_PAGES = re.compile(r"^TCP: .* mem ([0-9]+)", re.MULTILINE)
_PAGE_BYTES = 4096


def cpu_seconds(pid: int) -> float:
    """Return CPU time, user and system, of a process and its children so far."""
    return _total(_own_cpu_seconds, pid)


def memory_bytes(pid: int) -> int:
    """Return the proportional set size (PSS) of a process and its children."""
    return int(_total(_own_pss_bytes, pid))


def socket_bytes() -> int:
    """Return the kernel's memory for all TCP sockets of this machine, both ends of loopback included."""
    match = _SOCKET_PAGES.search(Path("/proc/net/sockstat").read_text())
    return int(match[1]) * _PAGE_BYTES if match else 0


def _total(own: Callable[[int], float], pid: int) -> float:
    """Sum over a process and its descendants; a descendant that exits meanwhile is skipped.

    Raises:
        OSError: the process itself has exited.
    """
    total = own(pid)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in _children(thread):
            with suppress(OSError):  # a clock says EINVAL of it, a file ENOENT or ESRCH
                total += _total(own, child)
    return total


def _children(thread: Path) -> list[int]:
    """Return the processes that a thread started, and those of threads that exited before."""
    try:
        return [int(child) for child in (thread / "children").read_text().split()]
    except OSError:  # it has exited, and another thread has its children
        return []


def _own_cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)


def _own_pss_bytes(pid: int) -> int:
    match = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return int(match[1]) * 1024 if match else 0
