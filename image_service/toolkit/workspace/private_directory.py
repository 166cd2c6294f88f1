"""Private directories: locked while their process lives, removed by the next call if it was killed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.common.concurrency.signals import signals_deferred
from image_service.common.programs.process_tree import kill_programs_with_tmpdir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK = "image-toolkit.lock"
_CONTENT = "content"
_NAMES = re.compile(r"image-toolkit\.[0-9a-f]{8}|\..+\.[0-9a-f]{8}\.part", re.DOTALL)
_NAME_BYTES = 200  # of the 255 that a file system takes


class PrivateDirectory:
    """A directory that only its owner may enter; it is removed with all that is in it.

    It has two entries: `path`, where files are made, and a file that this process keeps locked. A process
    that was killed has lost its lock, so that `remove_leftovers` knows what nobody uses.

    Args:
        name: a file that is made beside `parent/name`; "": of the call itself.
    """

    def __init__(self, parent: Path, name: str = "") -> None:
        with signals_deferred():  # from the first entry on, something removes the directory
            self._top, self.lock = _create(parent, name)
            self._remove = weakref.finalize(self, _remove, self._top, self.lock)
            self.path = self._top / _CONTENT
            self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove it, if that was not done before; the end of the process does so too."""
        with signals_deferred():
            self._remove()


def _create(parent: Path, name: str) -> tuple[Path, int]:
    """Return a new directory and the descriptor of the lock in it."""
    cut = os.fsdecode(os.fsencode(name)[:_NAME_BYTES])
    while True:
        unique = secrets.token_hex(4)
        top = parent / (f".{cut}.{unique}.part" if name else f"image-toolkit.{unique}")
        top.mkdir(mode=0o700)
        # Between any two steps another call may take the directory for a leftover, and remove it.
        with suppress(FileNotFoundError):
            lock = os.open(top / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if _is_locked(lock, top):
                return top, lock
            os.close(lock)


def _is_locked(lock: int, top: Path) -> bool:
    """Lock an open file; False if another process has locked or removed it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), (top / _LOCK).stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove(top: Path, lock: int) -> None:
    """Remove a private directory; its lock at last, because a directory without one would stay."""
    shutil.rmtree(top / _CONTENT, ignore_errors=True)
    with suppress(OSError):
        (top / _LOCK).unlink()
        top.rmdir()
    os.close(lock)


def remove_leftovers(parent: Path) -> None:
    """Remove the private directories in `parent` whose processes were killed; those in use stay.

    Programs that the killed processes have started and that still run are killed too.
    """
    for top in _tops(parent):
        try:
            lock = os.open(top / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # Its process was killed, or has not come to the lock; it tries again then.
            with suppress(OSError):
                top.rmdir()
            continue
        except OSError:
            continue
        with signals_deferred():
            if _is_locked(lock, top):
                kill_programs_with_tmpdir(top / _CONTENT)
                _remove(top, lock)
            else:
                os.close(lock)


def locks_in(parent: Path) -> Iterator[int]:
    """Yield descriptors of the locks of the private directories in `parent`; each is closed afterwards."""
    for top in _tops(parent):
        with suppress(OSError):
            lock = os.open(top / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                yield lock
            finally:
                os.close(lock)


def _tops(parent: Path) -> list[Path]:
    """Return private directories of this user in a directory."""
    found = []
    with suppress(PermissionError), os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if (
                    _NAMES.fullmatch(entry.name)
                    and stat.S_ISDIR(status.st_mode)
                    and status.st_uid == os.geteuid()
                ):
                    found.append(parent / entry.name)
    return found
