"""The cores of this machine: limiting the share of a process, and the CPU time of all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 10_000
_IDLE = (3, 4)  # columns of /proc/stat: idle, and idle while waiting for a disk


def bounding_group(stack: ExitStack, name: str, share: float) -> Path | None:
    """Make a control group whose processes together get a share of one core.

    Args:
        stack: removes it; its processes must have exited by then.
        name: appended to a prefix that is unique to this process.
        share: of a core.

    Returns:
        its directory, for `confine`; None if this process may not make one.
    """
    first_version = _GROUPS / "cpu"
    quota, period = str(round(share * _PERIOD_MICROSECONDS)), str(_PERIOD_MICROSECONDS)
    limits = {"cpu.max": f"{quota} {period}"}
    if first_version.is_dir():
        limits = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
    group = (first_version if first_version.is_dir() else _GROUPS) / f"bench-{os.getpid()}-{name}"
    try:
        group.mkdir()
        stack.callback(_remove, group)
        for file, limit in limits.items():
            (group / file).write_text(limit)
    except OSError:
        return None
    return group


def confine(pid: int, group: Path) -> None:
    """Move a process, with its future children, into a control group."""
    (group / "cgroup.procs").write_text(str(pid))


def total_cpu_seconds() -> float:
    """Return the CPU time of all processes of this machine so far."""
    columns = [int(column) for column in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = sum(ticks for column, ticks in enumerate(columns) if column not in _IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


def _remove(group: Path) -> None:
    with suppress(OSError):  # a process is still in it
        group.rmdir()
