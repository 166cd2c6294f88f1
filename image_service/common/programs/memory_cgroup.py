"""A control group that bounds the memory of one program, where this process may make one below its own."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMOVALS, _REMOVAL_SECONDS = 200, 0.01
_PREFIX = "image-toolkit-"
_NAME = re.compile(_PREFIX + "([0-9]+)-[0-9a-f]+")  # the id of the process that made it
_MOUNT = re.compile(r"\S+ \S+ \S+ (?P<root>\S+) (?P<point>\S+) .* - (?P<kind>cgroup2?) \S+ (?P<options>\S+)")
_OF_LIMIT = {"cgroup": "memory.limit_in_bytes", "cgroup2": "memory.max"}
_OF_SWAP = {"cgroup": "memory.memsw.limit_in_bytes", "cgroup2": "memory.swap.max"}
_OF_KILLS = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}


@attrs.frozen
class MemoryCgroup:
    """A control group with a limit of memory.

    Args:
        kind: ``cgroup`` (version 1) or ``cgroup2``.
    """

    directory: Path
    kind: str

    @property
    def procs(self) -> Path:
        """The file to which a process writes its id in order to join."""
        return self.directory / "cgroup.procs"

    @property
    def has_killed(self) -> bool:
        """True if the kernel killed a member because of the limit."""
        with suppress(OSError):
            lines = (self.directory / _OF_KILLS[self.kind]).read_text().splitlines()
            return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)
        return False


@contextmanager
def memory_cgroup(limit_bytes: int | None) -> Iterator[MemoryCgroup | None]:
    """Yield a new group, or None without a limit or where none can be made; it is removed at the end.

    What killed calls have left is removed first.
    """
    made = (_make(parent, limit_bytes) for parent in parent_cgroups()) if limit_bytes else ()
    group = next(filter(None, made), None)
    try:
        yield group
    finally:
        if group:
            _remove(group.directory)


def _remove(directory: Path) -> None:
    """Remove a group; the last member may have ended, and not yet left it."""
    for _ in range(_REMOVALS):
        try:
            return directory.rmdir()
        except OSError:
            time.sleep(_REMOVAL_SECONDS)
    return None


def _make(parent: MemoryCgroup, limit_bytes: int) -> MemoryCgroup | None:
    """Return a new group below another, or None if this process may not make one."""
    for leftover in parent.directory.glob(f"{_PREFIX}*"):
        if (name := _NAME.fullmatch(leftover.name)) and not Path("/proc", name[1]).exists():
            with suppress(OSError):
                leftover.rmdir()
    group = MemoryCgroup(parent.directory / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}", parent.kind)
    try:
        group.directory.mkdir()
        (group.directory / _OF_LIMIT[group.kind]).write_text(str(limit_bytes))
        if (swap := group.directory / _OF_SWAP[group.kind]).exists():
            swap.write_text(str(limit_bytes) if group.kind == "cgroup" else "0")
    except OSError:
        with suppress(OSError):
            group.directory.rmdir()
        return None
    return group


def parent_cgroups() -> Iterator[MemoryCgroup]:
    """Yield the group of this process in each hierarchy that has a controller of memory."""
    with suppress(OSError):
        mounts = [_MOUNT.match(line) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for mount in filter(None, mounts):
            for _, controllers, path in own:
                of_memory = "memory" in controllers.split(",") and "memory" in mount["options"].split(",")
                if of_memory if mount["kind"] == "cgroup" else not controllers:
                    inside = path.removeprefix(mount["root"].rstrip("/")).lstrip("/")
                    yield MemoryCgroup(Path(mount["point"], inside), mount["kind"])
