"""Files in ``DATA_DIR``: each is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TEMPORARY = re.compile(r"\.rhcos-.+\.[0-9a-f]{8}\.part")


@contextlib.contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the place of ``path`` once it is complete and on the disk.

    Args:
        path: its name begins with ``rhcos-``, so that what a crash leaves behind is known again.

    Yields:
        the file; when the block raises, nothing of it stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files that a process which was killed left behind, and nothing else."""
    for path in directory.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
