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
from image_service.common.concurrency.writeback import written_back
from image_service.common.files.atomic import atomic_target
from image_service.tools.iso.writing import write_extents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from image_service.core.base_file import BaseFile
    from image_service.core.extents import ExtentMap

STANDARD_OUTPUT = "-"
_STANDARD_OUTPUTS = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


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
        with open_output(path) as file, ProgressBar(extents.size) as progress:
            write_extents(extents, file.fileno(), progress.advance)
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
    with (
        atomic_target(path) as temporary,
        written_back(temporary),
        temporary.open("xb", buffering=0) as file,
    ):
        yield file
