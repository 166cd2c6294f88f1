"""The output of a call: made in a private directory beside its place, and put there by rename."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from image_service.common.concurrency.signals import signals_deferred
from image_service.core.errors import UnusableOutput, describe_os_error
from image_service.toolkit.workspace.private_directory import PrivateDirectory, remove_leftovers

_KINDS = {stat.S_IFLNK: "a symlink", stat.S_IFDIR: "a directory"}
_NEW_MODE = 0o666


def mode_for(path: Path) -> int:
    """Return the permissions of a new file: those of the file that it replaces, or what the umask leaves.

    Raises:
        UnusableOutput: `path` is not a plain file.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        found = re.search("^Umask:\t([0-7]+)", status, re.MULTILINE)
        return _NEW_MODE & ~int(found[1], 8) if found else 0o600
    except OSError as error:
        raise UnusableOutput(describe_os_error(error)) from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device or another special file")
        raise UnusableOutput(f"{path} is {kind}; the output must be a plain file, or not exist")
    return stat.S_IMODE(mode) & 0o777


def directory_of(path: Path) -> Path:
    """Return the directory in which a file will be made, without symlinks.

    Raises:
        UnusableOutput: there is none.
    """
    try:
        directory = path.parent.resolve(strict=True)
    except OSError as error:
        raise UnusableOutput(f"{path} cannot be made: {describe_os_error(error)}") from error
    if not directory.is_dir():
        raise UnusableOutput(f"{path} cannot be made: {directory} is not a directory")
    return directory


def private_directory_beside(path: Path) -> PrivateDirectory:
    """Return a new private directory beside `path`, after the leftovers of killed calls there."""
    parent = directory_of(path)
    try:
        remove_leftovers(parent)
        return PrivateDirectory(parent, path.name)
    except OSError as error:
        raise UnusableOutput(f"no file can be made beside {path}: {describe_os_error(error)}") from error


def create_file(path: Path) -> None:
    """Make an empty file that only its owner may read."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(path, flags, 0o600))


def publish(temporary: Path, path: Path, *, private: bool) -> None:
    """Put a finished file in its place, which has its old content or all of the new one at any time.

    Args:
        private: only its owner may read it; else it has `mode_for` the place.
    """
    mode = 0o600 if private else mode_for(path)
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    with signals_deferred():
        temporary.rename(path)
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
