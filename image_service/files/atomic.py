"""Files in ``DATA_DIR``: each is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TEMPORARY = re.compile(r"\.(?:\.?rhcos-.+|image-service\.json)\.[0-9a-f]{8}\.part")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the place of ``path`` once it is complete and on the disk.

    Args:
        path: its name begins with ``rhcos-`` or ``.rhcos-``, by which what a crash leaves behind is known.

    Yields:
        the file; when the block raises, nothing of it stays.
    """
    with atomic_target(path) as temporary, temporary.open("xb") as file:
        yield file


@contextlib.contextmanager
def atomic_target(path: Path) -> Iterator[Path]:
    """Give a name for a new file that somebody else writes, and do with it as ``written`` does.

    Args:
        path: as that of ``written``.

    Yields:
        where the file must be when the block ends; when it raises, nothing of it stays.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        publish_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Give a new directory for files that nobody wants when the block ends."""
    temporary = _temporary(parent / "rhcos-scratch")
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary)


def publish_file(temporary: Path, path: Path) -> None:
    """Let a complete file take the place of ``path``, once it is on the disk."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def remove_temporary_files(directory: Path) -> None:
    """Remove what is temporary and was left behind by a process that was killed, and nothing else."""
    for path in directory.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def _sync(path: Path) -> None:
    """Wait until a file, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
