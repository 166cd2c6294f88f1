"""Opening files without following symbolic links, and files that only their owner may read.

Others may be able to write to ``DATA_DIR``. A link that they put at the name of one of our files must not
lead a write, or a change of mode, to a file elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.files.exposure import describe_owner
from image_service.common.files.modes import private_mode

if TYPE_CHECKING:
    from pathlib import Path

_log = Logger()


def open_no_follow(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a file, which the caller closes; see os.open.

    Raises:
        OSError: it cannot be opened; it is a symbolic link.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, private_mode(mode))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        raise


def create_private(path: Path) -> None:
    """Create an empty private file, or restrict the existing one, without opening that.

    Closing any descriptor of a file releases all locks that SQLite has on it (POSIX, fcntl).

    Raises:
        OSError: it cannot be created; it is a symbolic link.
    """
    try:
        os.close(open_no_follow(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        restrict_to_owner(path)


def make_private(path: Path) -> None:
    """Give a file that another program has made the mode of private files, if this user owns it."""
    with suppress(OSError):  # of another owner, gone, or a symbolic link
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", private_mode(0o600))  # noqa: PTH101 - of the descriptor
        finally:
            os.close(descriptor)


def restrict_to_owner(path: Path) -> None:
    """Take the permissions of others, and of a group that shares no files, and log that.

    A file of another owner stays as it is, which is logged too: a volume may have had another user before.

    Raises:
        OSError: it is absent, or a symbolic link.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # keeps SQLite's locks, too
    try:
        status = os.fstat(descriptor)
        if stat.S_ISLNK(status.st_mode):
            raise _link(path)
        mode = stat.S_IMODE(status.st_mode)
        private = mode & private_mode(stat.S_IRWXU)
        if mode != private:
            text = "{path} had mode {mode:04o}, which gave others access; now it has {now:04o}"
            try:
                os.chmod(f"/proc/self/fd/{descriptor}", private)  # noqa: PTH101 - of the descriptor
            except PermissionError:
                text = "{path} has mode {mode:04o}, which gives others access and only its owner can change"
            _log.warn(text, path=str(path), mode=mode, now=private)
        for warning in describe_owner(path, status):
            _log.warn("{warning}", warning=warning)
    finally:
        os.close(descriptor)


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path} is a symbolic link, which is not followed; remove it")
