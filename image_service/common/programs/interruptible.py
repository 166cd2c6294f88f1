"""Runs programs in a sandbox for a service, which may stop meanwhile. Every call blocks its thread."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.programs.dependencies import PRLIMIT, SETPRIV
from image_service.common.programs.sandbox import ResourceLimits, run_sandboxed
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.programs.program import ProgramResult

NEEDED = (PRLIMIT, SETPRIV)
"""The programs that start another in a sandbox."""
_log = Logger()
_has_warned = threading.Event()
_NO_LIMITS = ResourceLimits()


def run_interruptibly(  # noqa: PLR0913 - properties of a child process
    command: Sequence[str],
    interruption: Interruption,
    *,
    descriptors: Sequence[int] = (),
    stdin: bytes = b"",
    reads: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    limits: ResourceLimits = _NO_LIMITS,
    wall_seconds: float = math.inf,
) -> ProgramResult:
    """Run a program, found in PATH, to its end; it is killed with its children when this raises.

    Args:
        command: its name, which is that of its Debian package, and its arguments.
        interruption: stops this from another thread.
        descriptors: of open files, which it may open again by ``/proc/self/fd``.
        reads: absolute paths of files that it may read.
        environment: its variables beside PATH and LC_ALL.
        limits: it needs none if the size of its input bounds its cost.
        wall_seconds: duration, after which it is killed.

    Raises:
        Unavailable: it is not installed, or exceeded the time-out.
        Interrupted: the service stops.
    """
    name = command[0]
    interruption.raise_if_interrupted()
    program = shutil.which(name)
    if program is None:
        raise Unavailable(f"{name} is not installed; install the package {name}")
    for needed in NEEDED:
        if needed.find() is None:
            raise Unavailable(f"{needed.name} is not installed; install the package {needed.debian}")
    deadline = time.monotonic() + wall_seconds

    def watch(_pid: int) -> None:
        interruption.raise_if_interrupted()
        if time.monotonic() >= deadline:
            raise Unavailable(f"{name} took more than {wall_seconds:g} s")

    return run_sandboxed(
        [program, *command[1:]],
        environment={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **(environment or {})},
        limits=limits,
        watch=watch,
        warn=lambda line: _warn_once(name, line),
        reads=reads,
        descriptors=descriptors,
        stdin=stdin,
    )


def _warn_once(name: str, line: str) -> None:
    """Log a line for the first program of this process."""
    if not _has_warned.is_set():
        _has_warned.set()
        _log.warn("{program}: {warning}", program=name, warning=line)
