"""What the calls of one scratch directory have reserved, and how much of it they have written."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from image_service.core.errors import NoRoom
from image_service.toolkit.workspace.private_directory import locks_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_BLOCK = 512  # bytes of st_blocks
_LEDGER_BYTES = 1024 * 1024
_WAITS, _WAIT_SECONDS = 100, 0.05


def bytes_used(directories: Iterable[str | Path], device: int | None = None) -> int:
    """Return the bytes that the files below directories take on their file systems; holes take none.

    Args:
        directories: private ones; those that are gone have no files.
        device: counts only files on this one (``st_dev``).
    """
    return sum(
        status.st_blocks * _BLOCK
        for directory in directories
        for parent, _, names in os.walk(directory)
        for name in names
        if (status := _status(f"{parent}/{name}")) and device in (None, status.st_dev)
    )


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


class Ledger:
    """The reservations of this call, beside those of its neighbours, in the locked file of each.

    Args:
        parent: the scratch directory, which the neighbours share.
        lock: descriptor of the locked file of this call.
    """

    def __init__(self, parent: Path, lock: int) -> None:
        self._parent = parent
        self._lock = lock
        self._directories: list[str] = []
        self._reserved: dict[str, int] = {}

    @property
    def reserved(self) -> int:
        """The bytes that this call has reserved, on all file systems."""
        return sum(self._reserved.values())

    @property
    def used(self) -> int:
        """The bytes that the files of this call take."""
        return bytes_used(self._directories)

    def add_directory(self, directory: Path) -> None:
        """Count the files of a private directory as written by this call."""
        self._directories.append(str(directory.absolute()))
        with self._exclusively():
            self._write()

    def reserve(self, needed: int, purpose: str, directory: Path) -> None:
        """Reserve bytes on the file system of a directory.

        Raises:
            NoRoom: it has not as many beside what all calls have reserved and not yet written.
        """
        status = os.statvfs(directory)
        device = directory.stat().st_dev
        with self._exclusively():
            promised = sum(_outstanding(lock, device) for lock in locks_in(self._parent))
            free = max(0, status.f_bavail * status.f_frsize - promised)
            if needed > free:
                raise NoRoom(
                    f"{purpose} needs {needed} bytes, and the file system of {directory} has {free} free"
                    f" beside the {promised} bytes that calls in progress have reserved"
                )
            self._reserved[str(device)] = self._reserved.get(str(device), 0) + needed
            self._write()

    def give_back(self) -> None:
        """Reserve no more than what the files of this call take now."""
        with self._exclusively():
            self._reserved = {device: bytes_used(self._directories, int(device)) for device in self._reserved}
            self._write()

    def _write(self) -> None:
        document = json.dumps({"reserved": self._reserved, "directories": self._directories}).encode()
        os.pwrite(self._lock, document, 0)
        os.ftruncate(self._lock, len(document))

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Let no neighbor reserve meanwhile, as far as the file system can lock directories (NFS cannot)."""
        descriptor = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for _ in range(_WAITS):  # limited, because any user may lock a shared directory
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(_WAIT_SECONDS)
                    continue
                except OSError:
                    pass
                break
            yield
        finally:
            os.close(descriptor)


def _outstanding(lock: int, device: int) -> int:
    """Return the bytes on a device that a call has reserved and not yet written."""
    with suppress(ValueError, KeyError):  # a call that has not reserved anything yet
        document = json.loads(os.pread(lock, _LEDGER_BYTES, 0))
        return max(
            0, int(document["reserved"].get(str(device), 0)) - bytes_used(document["directories"], device)
        )
    return 0
