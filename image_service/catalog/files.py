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
    with made(path) as temporary, temporary.open("xb") as file:
        yield file


@contextlib.contextmanager
def made(path: Path) -> Iterator[Path]:
    """Give a name for a new file that somebody else writes, and do with it as ``written`` does.

    Args:
        path: as that of ``written``.

    Yields:
        where the file must be when the block ends; when it raises, nothing of it stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files that a process which was killed left behind, and nothing else."""
    for path in directory.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
