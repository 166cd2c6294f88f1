"""Base images of any size: the packaged sample ISO, padded with random bytes or with a hole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from image_service.server.standalone.sample import unpack_sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

_MIB = 1024 * 1024


def dense_image(directory: Path, megabytes: int) -> Path:
    """Return an ISO of this many MiB without holes, written to the disk unless it exists."""

    def fill(file: BinaryIO) -> None:
        block = os.urandom(_MIB)
        while (missing := megabytes * _MIB - file.tell()) > 0:
            file.write(block[:missing])
        file.flush()
        os.fsync(file.fileno())  # clean pages, which the page cache may drop

    return _pad_sample(directory / f"dense-{megabytes}.iso", fill)


def sparse_image(directory: Path, gibibytes: int) -> Path:
    """Return an ISO of this many GiB whose rest is a hole, written unless it exists."""
    return _pad_sample(
        directory / f"sparse-{gibibytes}.iso", lambda file: file.truncate(gibibytes * 1024 * _MIB)
    )


def drop_from_page_cache(path: Path) -> None:
    """Drop a file from the page cache; on tmpfs, which has no disk, this does nothing."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _pad_sample(path: Path, pad: Callable[[BinaryIO], object]) -> Path:
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(unpack_sample(path.parent).read_bytes())
            pad(file)
        partial.rename(path)
    return path
