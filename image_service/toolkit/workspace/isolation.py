"""How programs are kept from the host: the words before a program's own command."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.toolkit.workspace.dependencies import BWRAP, SETPRIV, UNSHARE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PROBE_SECONDS = 20
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
_NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@cache
def find_isolation() -> str:
    """Return the name of the strongest isolation that works on this machine: bwrap, unshare or none."""
    for name, dependency in (("bwrap", BWRAP), ("unshare", UNSHARE)):
        if dependency.find() and _works(isolated(["true"], name)):
            return name
    return "none"


def _works(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are ours
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def isolated(
    command: Sequence[str],
    isolation: str,
    *,
    directory: Path | None = None,
    writes: Iterable[Path] = (),
    descriptors: Iterable[int] = (),
) -> list[str]:
    """Return a command that runs another in isolation.

    Args:
        command: program and arguments.
        isolation: as `find_isolation` names it.
        directory: the working directory, which it may write.
        writes: files, directories and devices that it may write.
        descriptors: of files that it opens again by ``/proc/self/fd``.
    """
    setpriv = SETPRIV.find() or SETPRIV.name
    if isolation == "bwrap":
        namespaces = _AS_ROOT if any(map(_needs_root, descriptors)) else _NAMESPACES
        return [
            *(BWRAP.find() or BWRAP.name, *namespaces, "--die-with-parent", "--new-session"),
            *_mounts(command[0]),
            *(("--bind", str(directory), str(directory), "--chdir", str(directory)) if directory else ()),
            *(word for path in writes for word in ("--dev-bind", str(path), str(path))),
            *("--", *command),
        ]
    if isolation == "unshare":
        return [UNSHARE.find() or UNSHARE.name, *_UNSHARE, setpriv, *_NO_CAPABILITIES, "--", *command]
    capabilities = _NO_CAPABILITIES if os.geteuid() == 0 else _NO_CAPABILITIES[-1:]
    return [setpriv, *capabilities, "--", *command]


def _needs_root(descriptor: int) -> bool:
    """Return True if root opened a file that only another user may open again."""
    status = os.fstat(descriptor)
    wanted = _READABLE | (_WRITABLE if _is_writable(descriptor) else 0)
    return os.geteuid() == 0 and status.st_uid != 0 and (stat.S_IMODE(status.st_mode) & wanted) != wanted


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
