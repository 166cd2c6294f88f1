"""Base images to measure with: live ISOs of any size, full of random bytes or of nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.formats.iso_builder import SECTOR, live_files, write_sparse_iso

if TYPE_CHECKING:
    from pathlib import Path

_MIB = 1024 * 1024


def dense_image(directory: Path, megabytes: int) -> Path:
    """Write an ISO without holes, unless it is there already.

    Args:
        directory: for the file.
        megabytes: its size in MiB.

    Returns:
        the file, which is on the disk, so that the page cache may drop it.
    """
    path = directory / f"dense-{megabytes}.iso"
    if not path.exists():
        partial = path.with_suffix(".partial")
        _write(partial, megabytes * _MIB)
        _fill(partial)
        partial.rename(path)
    return path


def sparse_image(directory: Path, gibibytes: int) -> Path:
    """Write an ISO that is one hole but for its first MiB and its last sector, unless it is there already.

    Args:
        directory: for the file.
        gibibytes: its size in GiB.

    Returns:
        the file.
    """
    path = directory / f"sparse-{gibibytes}.iso"
    if not path.exists():
        partial = path.with_suffix(".partial")
        _write(partial, gibibytes * 1024 * _MIB)
        partial.rename(path)
    return path


def drop_from_page_cache(path: Path) -> None:
    """Have the next reader of a file wait for the disk; on tmpfs, which has none, this does nothing."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(path: Path, size_bytes: int) -> None:
    last = {"images/zz.img": size_bytes - SECTOR}
    write_sparse_iso(path, {**live_files(), "images/zz.img": b"end"}, last)


def _fill(path: Path) -> None:
    """Fill the hole."""
    block = os.urandom(_MIB)
    with path.open("r+b") as file:
        file.seek(_MIB)
        for _ in range(path.stat().st_size // _MIB - 2):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
