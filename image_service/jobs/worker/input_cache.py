"""Base images that workers keep, by digest: one directory may serve several workers."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from image_service.common.files.modes import make_private_directory, private_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption

_UNFINISHED = ".part"
_CHECK_SECONDS = 0.2


class InputCache:
    """A directory of files that are named by their SHA-256; the least recently used file is removed first.

    A file that a worker uses, or fetches, is locked (flock).

    Args:
        directory: of the files; made if it does not exist, for this user alone.
        max_bytes: of all files; a larger file replaces all others.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        make_private_directory(directory)
        self._directory = directory.resolve()
        self._max_bytes = max_bytes

    @contextmanager
    def file(
        self, sha256: str, size: int, fetch: Callable[[Path], None], interruption: Interruption
    ) -> Iterator[Path]:
        """Yield the path of a file, which stays during the block.

        Args:
            sha256: of the content, in hexadecimal.
            size: bytes.
            fetch: writes the content to a file, and checks it; called if the file does not exist.
            interruption: ends the wait for another worker that fetches it.
        """
        path = self._directory / sha256
        while (descriptor := self._open_shared(path)) is None:
            with self._fetching(path, interruption) as unfinished:
                if not path.exists():
                    self._make_room(size)
                    fetch(unfinished)
                    unfinished.replace(path)
        try:
            # The time of access alone: programs that read the file check the time of its last change.
            os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))
            yield path
        finally:
            os.close(descriptor)

    def _open_shared(self, path: Path) -> int | None:
        """Return the descriptor of a file that nobody removes while it is open; None if there is none."""
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)
        return None

    @contextmanager
    def _fetching(self, path: Path, interruption: Interruption) -> Iterator[Path]:
        """Yield the path of an empty file, which nobody else writes; it is removed if it is still there."""
        unfinished = path.with_name(path.name + _UNFINISHED)
        while True:
            descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_mode(0o600))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    break
            except BlockingIOError:
                interruption.wait(_CHECK_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        try:
            os.ftruncate(descriptor, 0)  # it may have content of a killed worker
            yield unfinished
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(unfinished.stat(), os.fstat(descriptor)):
                    unfinished.unlink()
            os.close(descriptor)

    def _make_room(self, needed: int) -> None:
        """Remove files that nobody uses until a further one fits."""
        states = {}
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):  # another worker has just removed it
                states[path] = path.stat()
        left = sum(state.st_size for state in states.values()) + needed - self._max_bytes
        for path in sorted(states, key=lambda path: states[path].st_atime):
            if left <= 0:
                return
            left -= _remove_unused(path)


def _remove_unused(path: Path) -> int:
    """Remove a file that nobody has locked; return the bytes."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return 0
