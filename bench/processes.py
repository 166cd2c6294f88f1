"""What a server costs while it runs: CPU time and memory of its processes, as the kernel counts them."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CPU_CLOCK_OF_PROCESS = 2  # Linux: of all its threads, those that have ended included
_PSS = re.compile(r"^Pss: +([0-9]+) kB", re.MULTILINE)
_SOCKET_PAGES = re.compile(r"^TCP: .* mem ([0-9]+)", re.MULTILINE)
_PAGE_BYTES = 4096


def cpu_seconds(pid: int) -> float:
    """CPU time, user and system, that a process and its children have taken so far."""
    return _total(_own_cpu_seconds, pid)


def memory_bytes(pid: int) -> int:
    """Memory of a process and its children; of what several share, each has its part (PSS)."""
    return int(_total(_own_pss_bytes, pid))


def socket_bytes() -> int:
    """Memory that the kernel keeps for the TCP sockets of this machine, both ends of loopback included."""
    match = _SOCKET_PAGES.search(Path("/proc/net/sockstat").read_text())
    return int(match[1]) * _PAGE_BYTES if match else 0


def _total(own: Callable[[int], float], pid: int) -> float:
    """What a process takes, and all that were started by it; who ends meanwhile is left out.

    Raises:
        OSError: it has ended itself.
    """
    total = own(pid)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in _children(thread):
            with suppress(OSError):  # a clock says EINVAL of it, a file ENOENT or ESRCH
                total += _total(own, child)
    return total


def _children(thread: Path) -> list[int]:
    """Processes that a thread has started, and those of threads that ended before."""
    try:
        return [int(child) for child in (thread / "children").read_text().split()]
    except OSError:  # it has ended, and another has its children
        return []


def _own_cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)


def _own_pss_bytes(pid: int) -> int:
    match = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return int(match[1]) * 1024 if match else 0
