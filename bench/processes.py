"""What a server costs while it runs: CPU time and memory of its processes, as the kernel counts them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPU_CLOCK_OF_PROCESS = 2  # Linux: of all its threads, those that have ended included
_PSS = re.compile(r"^Pss: +([0-9]+) kB", re.MULTILINE)
_SOCKET_PAGES = re.compile(r"^TCP: .* mem ([0-9]+)", re.MULTILINE)
_PAGE_BYTES = 4096


def cpu_seconds(pid: int) -> float:
    """CPU time, user and system, that a process and its children have taken so far."""
    return sum(time.clock_gettime(~each << 3 | _CPU_CLOCK_OF_PROCESS) for each in family(pid))


def memory_bytes(pid: int) -> int:
    """Memory of a process and its children; of what several share, each has its part (PSS)."""
    return sum(_pss_bytes(each) for each in family(pid))


def socket_bytes() -> int:
    """Memory that the kernel keeps for the TCP sockets of this machine, both ends of loopback included."""
    match = _SOCKET_PAGES.search(Path("/proc/net/sockstat").read_text())
    return int(match[1]) * _PAGE_BYTES if match else 0


def family(pid: int) -> Iterator[int]:
    """A process, and all that were started by it and still run."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


def _pss_bytes(pid: int) -> int:
    match = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return int(match[1]) * 1024 if match else 0
