"""Writes a result to a file, which appears when it is complete, or to standard output."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.command_line.progress_bar import ProgressBar
from image_service.common.files.atomic import atomic_target
from image_service.core.errors import BaseImageError
from image_service.core.extents import FileExtent, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from image_service.core.base_file import BaseFile
    from image_service.core.extents import Extent, ExtentMap

STANDARD_OUTPUT = "-"
_STANDARD_OUTPUTS = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
CHUNK_BYTES = 4 * 1024 * 1024


def parse_output_name(name: str) -> str:
    """Return the name of a file; - for each name of standard output."""
    return STANDARD_OUTPUT if os.path.normpath(name) in _STANDARD_OUTPUTS else name


def choose_output(name: str, base: BaseFile | None = None, *, force: bool) -> Path | None:
    """Return the file to write; None for -, standard output.

    Raises OSError for the base image, and for another existing file unless `force` is True.
    """
    if name == STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise OSError(errno.EINVAL, "standard output is a terminal, which takes no binary data")
        return None
    path = Path(name).resolve()  # the target of a symlink is replaced, not the symlink
    with suppress(FileNotFoundError):
        status = Path(name).stat()  # a pipe's descriptor in /dev/fd has no path that it could be found by
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "exists and is not a regular file; -o - writes to anything", name)
        if base is not None and os.path.samestat(status, os.fstat(base.descriptor)):
            raise FileExistsError(errno.EEXIST, "is the base image itself", name)
        if not force:
            raise FileExistsError(errno.EEXIST, "exists; --force overwrites it", name)
    return path


def write_output(path: Path | None, extents: ExtentMap) -> None:
    """Write all bytes to a file or standard output, and show the progress on a terminal.

    Raises:
        BaseImageError: an extent's file cannot be read, or became shorter.
        OSError: the target cannot be written; no file is left.
    """
    try:
        with open_output(path) as file:
            _write(extents, file.fileno())
    except OSError as error:
        error.filename = str(path or "standard output")  # not the temporary file's
        raise


@contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open a file without a buffer, which appears when the block ends without an error, or standard output.

    Raises:
        OSError: the target cannot be written; no file is left.
    """
    if path is None:
        with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as output:
            yield output
        return
    with atomic_target(path) as temporary, temporary.open("xb", buffering=0) as file:
        yield file


def _write(extents: ExtentMap, target: int) -> None:
    """Write the extents in chunks.

    Chunks of a file end at multiples of the chunk size in the file: file systems that share blocks
    between files can share whole blocks only.
    """
    with ProgressBar(extents.size) as progress:
        for extent in extents.extents:
            offset = extent.offset if isinstance(extent, FileExtent) else 0
            position, stop = offset, offset + extent.length
            while position < stop:
                end = min(position - position % CHUNK_BYTES + CHUNK_BYTES, stop)
                written = _write_chunk(extent.slice(position - offset, end - offset), target)
                position += written
                progress.advance(written)


def _write_chunk(chunk: Extent, target: int) -> int:
    """Write at least one byte of a chunk; return how many."""
    if not isinstance(chunk, FileExtent):
        write_all(chunk.data if isinstance(chunk, Literal) else bytes(chunk.length), target)
        return chunk.length
    # Not all file systems and targets support it; a real error shows below.
    with suppress(OSError), chunk.file.hold(chunk.offset, chunk.length):
        copied = os.copy_file_range(chunk.file.descriptor, target, chunk.length, chunk.offset)
        if copied:
            return copied
    where = f"{chunk.file.path} at offset {chunk.offset}"
    try:
        data = chunk.file.read_at(chunk.offset, chunk.length)
    except OSError as error:
        raise BaseImageError(f"{where}: {error.strerror}") from None
    if not data:
        raise BaseImageError(f"{where}: the file became shorter than its {chunk.file.size} bytes")
    write_all(data, target)
    return len(data)


def write_all(data: bytes, target: int) -> None:
    """Write all bytes to a descriptor, which may take fewer at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
