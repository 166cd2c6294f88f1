"""Objects as files of a directory, which replicas may share."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.files.atomic import publish_file
from image_service.common.files.modes import make_private_directory, private_mode
from image_service.common.files.private_files import open_no_follow
from image_service.common.objects.store import StoredObject, check_key
from image_service.core.errors import InvalidRequest, NotFound, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from io import FileIO
    from pathlib import Path

_PIECE_BYTES = 64 * 1024
_ZEROS = bytes(_PIECE_BYTES)
_STAT_BLOCK_BYTES = 512
_UNFINISHED = ".unfinished"
"""The directory of files that are being written; no key begins with a dot."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ATTEMPTS = 5


class DirectoryStore:
    """A store in a directory, which is made for its owner alone. See ``ObjectStorage``.

    Args:
        reserve_bytes: of the file system that stay free.
    """

    def __init__(self, path: Path, reserve_bytes: int = 0) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes

    def begin(self, key: str, size: int | None = None) -> FileWriter:
        """Begin to write a file under another name, which is renamed once it is on the disk."""
        del size  # for other stores
        target = self._path / check_key(key)
        temporary = self._new_temporary()
        with _translated():
            descriptor = open_no_follow(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        return FileWriter(
            key, temporary, target, os.fdopen(descriptor, "wb", buffering=0), self._reserve_bytes
        )

    def link_file(self, key: str, path: Path, sha256: str) -> StoredObject | None:
        """Link the file into the directory; None: the file system refuses, or the file is on another one."""
        target = self._path / check_key(key)
        temporary = self._new_temporary()
        try:
            os.link(path, temporary, follow_symlinks=False)
        except FileNotFoundError as error:
            raise InvalidRequest(f"there is no file {error.filename}") from None
        except OSError:
            return None
        try:
            with _translated():
                if not stat.S_ISREG(temporary.lstat().st_mode):
                    raise InvalidRequest(f"{path} is not a regular file")
                _check_room(os.statvfs(temporary), self._reserve_bytes)
                temporary.chmod(private_mode(0o600))
                _publish(temporary, target)
                kept = target.stat()
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return StoredObject(key, kept.st_size, sha256, kept.st_blocks * _STAT_BLOCK_BYTES)

    def read_at(self, key: str, offset: int, length: int) -> bytes:
        """Read from the file."""
        with _translated():
            try:
                descriptor = open_no_follow(self._path / check_key(key), os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(f"the store has no object {key}") from None
            with os.fdopen(descriptor, "rb") as file:
                file.seek(offset)
                return file.read(length)

    def delete(self, key: str) -> None:
        """Remove the file, and directories that have become empty."""
        target = self._path / check_key(key)
        with _translated(), suppress(FileNotFoundError):
            target.unlink()
            for directory in target.parents:
                if directory == self._path:
                    break
                try:
                    directory.rmdir()
                except OSError:  # it has other files
                    break

    def remove_unfinished(self, before: datetime) -> None:
        """Remove incomplete files that were not written since."""
        with _translated(), suppress(FileNotFoundError):
            for path in (self._path / _UNFINISHED).iterdir():
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before.timestamp():
                        path.unlink()

    def _new_temporary(self) -> Path:
        """Return the path of a file to be made, in a directory that is there."""
        temporary = self._path / _UNFINISHED / secrets.token_hex(16)
        with _translated():
            for directory in (self._path, temporary.parent):
                make_private_directory(directory)
        return temporary


@attrs.define(eq=False)
class FileWriter:
    """A file that is being written; zeros become holes. See ``ObjectWriter``."""

    _key: str
    _temporary: Path
    _target: Path
    _file: FileIO
    _reserve_bytes: int
    _size: int = 0
    _digest: Any = attrs.field(factory=hashlib.sha256)  # hashlib names no type of its own

    def write(self, chunk: bytes, /) -> None:
        """Write a part of the file, and skip its zeros."""
        self._digest.update(chunk)
        self._size += len(chunk)
        for offset in range(0, len(chunk), _PIECE_BYTES):
            piece = memoryview(chunk)[offset : offset + _PIECE_BYTES]
            with _translated():
                if _ZEROS.startswith(piece):  # ten times as fast as a comparison of two memoryviews
                    self._file.seek(len(piece), os.SEEK_CUR)
                    continue
                _check_room(os.fstatvfs(self._file.fileno()), self._reserve_bytes, len(piece))
                _write(self._file.fileno(), piece)

    def complete(self) -> StoredObject:
        """Rename the file once it is on the disk."""
        with _translated(), self._file:
            self._file.truncate(self._size)
            kept_bytes = os.fstat(self._file.fileno()).st_blocks * _STAT_BLOCK_BYTES
        with _translated():
            _publish(self._temporary, self._target)
        return StoredObject(self._key, self._size, self._digest.hexdigest(), kept_bytes)

    def abort(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink()


def _check_room(space: os.statvfs_result, reserve_bytes: int, needed_bytes: int = 0) -> None:
    """Raise StoreFull if a file system has no room beside the reserve."""
    if space.f_bavail * space.f_frsize < reserve_bytes + needed_bytes:
        raise StoreFull(
            f"the object store in a directory is full: {reserve_bytes} bytes stay free (STORE_RESERVE_BYTES)"
        )


def _write(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _publish(temporary: Path, target: Path) -> None:
    """Rename a file into its directory, which ``delete`` of another object may be removing."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            publish_file(temporary, target)
        except (FileExistsError, FileNotFoundError):  # the former of mkdir, if the directory is removed then
            if attempt == _ATTEMPTS:
                raise
        else:
            return


@contextmanager
def _translated() -> Iterator[None]:
    """Raise StoreFailed, or StoreFull, in the place of OSError."""
    try:
        yield
    except OSError as error:
        kind = StoreFull if error.errno in _NO_ROOM else StoreFailed
        raise kind(f"the object store in a directory: {error.strerror}") from error
