"""Where a result goes: to a file, which is there whole or not at all, or to standard output."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import attrs

from image_service.cli.progress import Progress
from image_service.errors import BaseImageError
from image_service.files.atomic import atomic_target
from image_service.images.extents import FileExtent, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.files.base_file import BaseFile
    from image_service.images.extents import Extent, ExtentMap

_STANDARD_OUTPUT = "-"
_CHUNK = 4 * 1024 * 1024


@attrs.frozen
class Output:
    """Where to write.

    Args:
        path: a file that may be made or replaced; None: standard output.
    """

    path: Path | None

    @property
    def directory(self) -> Path:
        """Where there is room for what it is made of."""
        return self.path.parent if self.path else Path(gettempdir())

    def write(self, extents: ExtentMap) -> None:
        """Write all bytes, and show on a terminal how far it is.

        Args:
            extents: the bytes.

        Raises:
            BaseImageError: a file that they come from cannot be read, or became shorter.
            OSError: they cannot be written; then nothing of them is there.
        """
        try:
            with Progress(extents.size) as progress:
                self._write(extents, progress)
        except OSError as error:
            error.filename = str(self.path or "standard output")  # not a temporary one, nor none
            raise

    def _write(self, extents: ExtentMap, progress: Progress) -> None:
        if self.path is None:
            _write(extents, sys.stdout.fileno(), progress)
            return
        with atomic_target(self.path) as temporary, temporary.open("xb", buffering=0) as file:
            _write(extents, file.fileno(), progress)


def choose_output(name: str, base: BaseFile, *, force: bool) -> Output:
    """Refuse to write where something would be lost.

    Args:
        name: of a file; - is standard output.
        base: what is read.
        force: whether a file that is there may be replaced.

    Returns:
        where to write.

    Raises:
        OSError: not there.
    """
    if name == _STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise OSError(errno.EINVAL, "standard output is a terminal, which takes no binary data")
        return Output(None)
    path = Path(name).resolve()  # what a symlink leads to is replaced, not the symlink
    with suppress(FileNotFoundError):
        _check_existing(path.stat(), name, base, force=force)
    return Output(path)


def _check_existing(status: os.stat_result, name: str, base: BaseFile, *, force: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is there and no regular file; -o - writes to anything", name)
    if os.path.samestat(status, os.fstat(base.descriptor)):
        raise FileExistsError(errno.EEXIST, "is the base image itself", name)
    if not force:
        raise FileExistsError(errno.EEXIST, "is there already; --force overwrites it", name)


def _write(extents: ExtentMap, target: int, progress: Progress) -> None:
    for extent in extents.extents:
        for written in _write_extent(extent, target):
            progress.advance(written)


def _write_extent(extent: Extent, target: int) -> Iterator[int]:
    """Write an extent in chunks, and tell the length of each.

    Of a file they end where the file has multiples of a chunk: file systems that can share blocks
    between files do so from one block's beginning to another's.
    """
    offset = extent.offset if isinstance(extent, FileExtent) else 0
    position, stop = offset, offset + extent.length
    while position < stop:
        end = min(position - position % _CHUNK + _CHUNK, stop)
        written = _write_chunk(extent.slice(position - offset, end - offset), target)
        position += written
        yield written


def _write_chunk(chunk: Extent, target: int) -> int:
    if isinstance(chunk, FileExtent):
        return _copy(chunk, target)
    _write_all(chunk.data if isinstance(chunk, Literal) else bytes(chunk.length), target)
    return chunk.length


def _copy(chunk: FileExtent, target: int) -> int:
    """Write at least one byte of a chunk."""
    with (
        suppress(OSError),
        chunk.file.hold(chunk.offset, chunk.length),
    ):  # whatever it cannot do, or not with a pipe; what is really wrong shows below
        copied = os.copy_file_range(chunk.file.descriptor, target, chunk.length, chunk.offset)
        if copied:
            return copied
    data = _read(chunk)
    _write_all(data, target)
    return len(data)


def _read(chunk: FileExtent) -> bytes:
    where = f"{chunk.file.path} at offset {chunk.offset}"
    try:
        data = chunk.file.read_at(chunk.offset, chunk.length)
    except OSError as error:
        raise BaseImageError(f"{where}: {error.strerror}") from None
    if not data:
        raise BaseImageError(f"{where}: the file became shorter than its {chunk.file.size} bytes")
    return data


def _write_all(data: bytes, target: int) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
