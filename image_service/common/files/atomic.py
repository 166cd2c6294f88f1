"""Atomic publication: a file in ``DATA_DIR`` is complete or absent."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING, BinaryIO

from image_service.common.files.modes import private_mode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TEMPORARY = re.compile(r"\.(?:\.?rhcos-.+|image-service(?:-bases|-address)?\.json)\.[0-9a-f]{8}\.part")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the block ends; if the block raises, nothing is left.

    Args:
        path: named ``rhcos-…`` or ``.rhcos-…``, by which temporary files are recognized after a crash.
    """
    with atomic_target(path) as temporary, temporary.open("xb") as file:
        yield file


@contextlib.contextmanager
def atomic_target(path: Path) -> Iterator[Path]:
    """Yield the path of a file to be made in the block, which then replaces ``path``; see `atomic_write`."""
    temporary = _temporary(path)
    try:
        yield temporary
        publish_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Yield a new directory, which is removed when the block ends."""
    temporary = _temporary(parent / "rhcos-scratch")
    temporary.mkdir(mode=private_mode(0o700))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary)


def publish_file(temporary: Path, path: Path) -> None:
    """Replace ``path`` by a complete file, after syncing that to the disk."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def remove_temporary_files(directory: Path) -> None:
    """Remove the temporary files of processes that were killed, and nothing else."""
    for path in directory.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
