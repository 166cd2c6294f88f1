"""How programs are kept from the host: the words before a program's own command."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.programs.dependencies import BWRAP, SETPRIV, UNSHARE
from image_service.common.programs.environment import environment_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ISOLATIONS = ("bwrap", "unshare", "none")
"""The strongest first."""
NOT_ISOLATED = "programs run without isolation: neither bwrap nor unshare works here"
MAKE_ISOLATED = (
    "neither bwrap nor unshare works here; install the package bubblewrap, and let this process make user"
    " namespaces"
)
_PROBE_SECONDS = 20
_NOTHING = ("/bin/sh", "-c", ":")  # PATH may name directories that bwrap does not show
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION = ("/etc/ld.so.cache", "/etc/alternatives")
_READABLE, _WRITABLE = 0o004, 0o002
# uid 0 of the host without its capabilities, or the user, in both cases as `nobody`.
_NAMESPACES = ("--unshare-all", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL")
_AS_ROOT = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--cap-add", "CAP_DAC_OVERRIDE"),
)
# The host's /proc stays: in it, /proc/self is the right process in a new PID namespace too.
_UNSHARE = (
    *("--user", "--map-root-user", "--net", "--ipc", "--uts"),
    *("--pid", "--fork", "--kill-child=KILL"),
)
# The first process of a PID namespace ignores most signals, that of a limit of CPU time too.
_FIRST_PROCESS = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
_NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
_READING_CAPABILITIES = ("--bounding-set=-all,+dac_override", *_NO_CAPABILITIES[1:])


@cache
def find_isolation() -> str:
    """Return the strongest of `ISOLATIONS` that works on this machine."""
    return next(filter(works, ISOLATIONS[:-1]), ISOLATIONS[-1])


def works(isolation: str) -> bool:
    """Return True if a program can be started in an isolation."""
    return _runs(isolated(_NOTHING, isolation))


@cache
def reads_as_root(isolation: str) -> bool:
    """Return True if root can give a program in this isolation the files of other users; see `needs_root`."""
    return isolation == "bwrap" and _runs([*_bwrap(_AS_ROOT, _NOTHING[0]), "--", *_NOTHING])


def _runs(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are ours
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment_of(os.environ),
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def isolated(  # noqa: PLR0913 - what a program may reach
    command: Sequence[str],
    isolation: str,
    *,
    directory: Path | None = None,
    reads: Sequence[Path] = (),
    writes: Iterable[Path] = (),
    descriptors: Iterable[int] = (),
) -> list[str]:
    """Return a command that runs another in isolation.

    Args:
        isolation: as `find_isolation` names it.
        directory: the working directory, which it may write.
        reads: files that it may read.
        writes: files, directories and devices that it may write.
        descriptors: of files that it opens again by ``/proc/self/fd``.
    """
    setpriv = SETPRIV.find() or SETPRIV.name
    if isolation == "bwrap":
        return [
            *_bwrap(_AS_ROOT if needs_root(reads, descriptors) else _NAMESPACES, command[0]),
            *(("--bind", str(directory), str(directory), "--chdir", str(directory)) if directory else ()),
            *(word for path in reads for word in ("--ro-bind", str(path), str(path))),
            *(word for path in writes for word in ("--dev-bind", str(path), str(path))),
            *("--", *command),
        ]
    if isolation == "unshare":
        unshare = (UNSHARE.find() or UNSHARE.name, *_UNSHARE)
        return [*unshare, setpriv, *_NO_CAPABILITIES, "--", *_FIRST_PROCESS, *command]
    if os.geteuid() != 0:
        return [setpriv, *_NO_CAPABILITIES[-1:], "--", *command]
    capabilities = _READING_CAPABILITIES if needs_root(reads, descriptors) else _NO_CAPABILITIES
    return [setpriv, *capabilities, "--", *command]


def needs_root(reads: Sequence[Path], descriptors: Iterable[int]) -> bool:
    """Return True if this is root, and could not open one of the files without its capabilities."""
    wanted = [(os.fstat(number), _READABLE | _is_writable(number) * _WRITABLE) for number in descriptors]
    wanted += [(path.stat(), _READABLE) for path in reads]
    return os.geteuid() == 0 and any(
        status.st_uid != 0 and (stat.S_IMODE(status.st_mode) & bits) != bits for status, bits in wanted
    )


def _bwrap(namespaces: Sequence[str], program: str) -> list[str]:
    words = (BWRAP.find() or BWRAP.name, *namespaces, "--die-with-parent", "--new-session")
    return [*words, *_mounts(program)]


def _is_writable(descriptor: int) -> bool:
    return (fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE) != os.O_RDONLY


def _mounts(program: str) -> list[str]:
    """Return bwrap's arguments for a file system with programs and libraries, and nothing of the host's."""
    words = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            words += ["--symlink", str(Path(path).readlink()), path]
        else:
            words += ["--ro-bind-try", path, path]
    for path in _CONFIGURATION:
        words += ["--ro-bind-try", path, path]
    if program.startswith("/") and not program.startswith(("/usr/", *(f"{path}/" for path in _SYSTEM))):
        words += ["--ro-bind", program, program]
    return words
