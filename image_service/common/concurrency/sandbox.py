"""Child processes with a minimal environment, bounded resources, a time-out and interruption.

Programs run here parse bytes of unknown origin. They get descriptors instead of paths, a session of their
own (a terminal's Ctrl-C does not reach them), and of the environment only PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.common.concurrency.interruption import Interruption

_POLL_SECONDS = 0.2
# Set by a shell before it executes the program: limits set from the parent (prlimit) would come too late for
# programs that finish within milliseconds.
_LIMITED = 'ulimit -f "$1" && ulimit -t "$2" && ulimit -v "$3" && shift 3 && exec "$@"'


@attrs.frozen
class ResourceLimits:
    """Limits of a child process.

    Args:
        file_bytes: size of each file it writes (RLIMIT_FSIZE).
        cpu_seconds: RLIMIT_CPU.
        memory_bytes: address space (RLIMIT_AS).
        wall_seconds: duration, after which it is killed.
    """

    file_bytes: int
    cpu_seconds: int
    memory_bytes: int
    wall_seconds: float


def run_sandboxed(  # noqa: PLR0913 - properties of a child process
    command: Sequence[str],
    interruption: Interruption,
    *,
    descriptors: Sequence[int],
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    limits: ResourceLimits | None = None,
) -> int:
    """Run a program, found in PATH, to its end; it is killed when this raises.

    It inherits `descriptors`, as ``/proc/self/fd/N``, and has `environment` in addition to PATH and LC_ALL.
    It needs no limits if the size of its input bounds its cost. Its Debian package has the program's name.

    Returns:
        its exit status; negative: the signal that killed it.

    Raises:
        Unavailable: it is not installed, or exceeded the time-out.
        Interrupted: the service stops.
    """
    program = command[0]
    interruption.raise_if_interrupted()
    if not shutil.which(program):
        raise Unavailable(f"{program} is not installed; install the package {program}")
    seconds = float("inf")
    if limits:
        seconds = limits.wall_seconds
        units = (limits.file_bytes // 512, limits.cpu_seconds, limits.memory_bytes // 1024)
        command = ["/bin/sh", "-c", _LIMITED, "sh", *map(str, units), *command]
    with subprocess.Popen(  # noqa: S603 - the shell's script is a constant, and the arguments are ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **(environment or {})},
        pass_fds=descriptors,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    interruption.raise_if_interrupted()
        finally:
            process.kill()  # no effect on one that has exited
    raise Unavailable(f"{program} took more than {seconds:g} s")
