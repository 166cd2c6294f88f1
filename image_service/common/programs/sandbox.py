"""Runs programs that parse bytes of unknown origin: isolated from the host, within limits of the kernel."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.programs.dependencies import PRLIMIT, SETPRIV
from image_service.common.programs.isolation import (
    NOT_ISOLATED,
    find_isolation,
    isolated,
    needs_root,
    reads_as_root,
)
from image_service.common.programs.memory_cgroup import memory_cgroup
from image_service.common.programs.program import ProgramResult, run_program
from image_service.core.errors import ConversionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.common.programs.memory_cgroup import MemoryCgroup

_OPEN_FILES = 256
# $1: id of this process. If it ended before setpriv asked for its death signal, none comes.
# $2: file of the control group, or nothing.
_START = '[ "$PPID" = "$1" ] || exit 1; [ -z "$2" ] || echo $$ >"$2"; shift 2; exec "$@"'


@attrs.frozen
class ResourceLimits:
    """Limits that the kernel enforces; None: no limit.

    Args:
        file_bytes: size of each file that a process writes (RLIMIT_FSIZE).
        cpu_seconds: of each process (RLIMIT_CPU); SIGXCPU ends it, or SIGKILL a second later.
        address_space_bytes: of each process (RLIMIT_AS).
        memory_bytes: resident memory of all processes, where this process may make a control group.
        is_yielding: other programs have the CPU and the disk first.
    """

    file_bytes: int | None = None
    cpu_seconds: int | None = None
    address_space_bytes: int | None = None
    memory_bytes: int | None = None
    is_yielding: bool = False

    def words(self) -> list[str]:
        """Return the words that start a program with these limits."""
        self._check_address_space()
        words = [PRLIMIT.find() or PRLIMIT.name, "--core=0", f"--nofile={_OPEN_FILES}"]
        if self.address_space_bytes is not None:
            words.append(f"--as={self.address_space_bytes}")
        if self.cpu_seconds is not None:
            words.append(f"--cpu={self.cpu_seconds}:{self.cpu_seconds + 1}")
        if self.file_bytes is not None:
            words.append(f"--fsize={self.file_bytes}")
        if self.is_yielding:
            words += ["nice", "ionice", "--class=best-effort", "--classdata=7"]
        return words

    def _check_address_space(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        needed = self.address_space_bytes
        if needed is not None and most != resource.RLIM_INFINITY and most < needed:
            raise ConversionFailed(
                f"this process may have {most} bytes of address space (ulimit -H -v); the programs that it"
                f" starts need a limit of {needed}"
            )


def run_sandboxed(  # noqa: PLR0913 - properties of a child process
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    limits: ResourceLimits,
    watch: Callable[[int], None],
    warn: Callable[[str], object],
    directory: Path | None = None,
    reads: Sequence[Path] = (),
    writes: Sequence[Path] = (),
    descriptors: Sequence[int] = (),
    stdin: bytes = b"",
    on_output: Callable[[bytes], None] | None = None,
) -> ProgramResult:
    """Run a program to its end, without network and privileges; an exception leaves no process behind.

    Args:
        command: the path of the program, and its arguments.
        environment: all its variables.
        watch: called with its process id ten times a second; raises to end it.
        warn: receives `NOT_ISOLATED` if this machine cannot isolate it.
        directory: the working directory, which it may write; None: the root directory.
        reads: absolute paths of files that it may read, beside programs and libraries.
        writes: absolute paths of files, directories and devices that it may write.
        descriptors: of open files, which it inherits and may open again by ``/proc/self/fd``.
        on_output: receives its standard output as it comes.

    Raises:
        ConversionFailed: it printed more than 16 MiB, and there is no `on_output`.
    """
    isolation = find_isolation()
    if needs_root(reads, descriptors) and not reads_as_root(isolation):
        isolation = "none"
    if isolation == "none":
        warn(NOT_ISOLATED)
    inner = isolated(
        command, isolation, directory=directory, reads=reads, writes=writes, descriptors=descriptors
    )
    with memory_cgroup(limits.memory_bytes) as group:
        result = run_program(
            [*_start(group), *limits.words(), *inner],
            environment=environment,
            directory=directory or Path("/"),
            descriptors=descriptors,
            stdin=stdin,
            on_output=on_output,
            watch=watch,
        )
        return attrs.evolve(result, exceeded_memory=bool(group and group.has_killed))


def _start(group: MemoryCgroup | None) -> list[str]:
    """Return the words that start a program, which dies with this process, in a control group."""
    pdeathsig = (SETPRIV.find() or SETPRIV.name, "--pdeathsig=KILL")
    return [*pdeathsig, "/bin/sh", "-c", _START, "sh", str(os.getpid()), str(group.procs if group else "")]
