"""Copies of files that keep their holes, and share blocks where the file system can (reflinks)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from image_service.common.files.data_ranges import data_ranges
from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from image_service.toolkit.workspace.workspace import Workspace

_PIECE = 16 * 1024 * 1024
_UNSUPPORTED = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def copy_sparse(
    source: int, target: int, workspace: Workspace, phase: str = "copy", position: int = 0
) -> None:
    """Copy an open file to an open file of at most `position` bytes; a phase of the progress.

    Args:
        source: descriptor.
        target: descriptor.
        position: offset of the copy in the target.

    Raises:
        FormatError: the source has become shorter meanwhile.
    """
    size = os.lseek(source, 0, os.SEEK_END)
    os.ftruncate(target, position + size)
    workspace.progress.start(phase, size)
    for start, length in data_ranges(source):
        done = start
        while done < start + length:
            count = _copy_piece(source, target, min(_PIECE, start + length - done), done, position + done)
            if not count:
                raise FormatError(f"the file has been cut: it ended at {done} of {size} bytes")
            done += count
            workspace.pace(count)
            workspace.progress.set(done)
    workspace.progress.finish()


def _copy_piece(source: int, target: int, length: int, offset: int, position: int) -> int:
    """Copy bytes at an offset to a position, and return how many."""
    try:
        return os.copy_file_range(source, target, length, offset, position)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    data = os.pread(source, length, offset)
    return os.pwrite(target, data, position)
