"""A base image that lies anywhere: opened and read, with nothing noted beside it."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.coreos.live_iso import read_architecture, read_live_iso
from image_service.coreos.minimal_iso import verify
from image_service.errors import BaseImageError, Unprocessable
from image_service.images.base import BaseImage
from image_service.images.canvas import virtual_minimal_canvas
from image_service.images.extents import BaseFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.formats.reading import ReadAt

UNKNOWN = "unknown"
"""What a base image's architecture is called where nothing tells it."""


@contextmanager
def open_base(path: str) -> Iterator[BaseImage]:
    """Open a base image.

    Args:
        path: of its file.

    Yields:
        the image, which may have been customised. Its digest is left out, which takes seconds: nothing but
        validators and derivations needs it.

    Raises:
        BaseImageError: it is no CoreOS live ISO that can be customised; says why.
        OSError: it cannot be read.
    """
    # O_NONBLOCK: a FIFO is refused, not waited for; regular files do not know it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield _examine(descriptor, path)
    finally:
        os.close(descriptor)


def reader(file: BaseFile) -> ReadAt:
    """Give what reads a file."""
    return partial(_read_at, file.descriptor)


def with_true_minimal(base: BaseImage) -> BaseImage:
    """Make the minimal ISO once, to see whether its recipe is right and what it makes can be customized.

    Args:
        base: with or without a recipe.

    Returns:
        the same; where the recipe is of no use, without it and with the reason.
    """
    layout = base.layout
    if layout.minimal is None:
        return base
    try:
        virtual_minimal_canvas(base, rootfs_url="")
        verify(layout.minimal, reader(base.file), lambda: None)
    except (BaseImageError, Unprocessable) as error:
        return attrs.evolve(base, layout=attrs.evolve(layout, minimal=None, no_minimal=error.detail))
    return base


def _examine(descriptor: int, path: str) -> BaseImage:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BaseImageError(f"{path} is not a regular file")
    file = BaseFile(descriptor, status.st_size, path)
    try:
        layout = read_live_iso(reader(file), file.size)
        architecture = read_architecture(reader(file), layout.files)
    except BaseImageError as error:
        raise BaseImageError(f"{path}: {error.detail}") from None
    return BaseImage(file, layout, "", Path(path).name, architecture or UNKNOWN)


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    return os.pread(descriptor, length, offset)
