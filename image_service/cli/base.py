"""A base image that lies anywhere: opened and read, with nothing noted beside it."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.coreos.live_iso import detect_architecture, read_live_iso
from image_service.coreos.minimal_iso import check_minimal_iso
from image_service.errors import BaseImageError, Unprocessable
from image_service.files.base_file import BaseFile
from image_service.images.base import BaseImage
from image_service.images.canvas import spliced_minimal_canvas

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    try:
        file = BaseFile.open(Path(path))
    except BaseImageError as error:
        raise BaseImageError(f"{path} {error.detail}") from None
    with closing(file):
        yield _examine(file, path)


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
        spliced_minimal_canvas(base, rootfs_url="")
        check_minimal_iso(layout.minimal, base.file.read_at, lambda: None)
    except (BaseImageError, Unprocessable) as error:
        return attrs.evolve(base, layout=attrs.evolve(layout, minimal=None, no_minimal=error.detail))
    return base


def _examine(file: BaseFile, path: str) -> BaseImage:
    try:
        layout = read_live_iso(file.read_at, file.size)
        architecture = detect_architecture(file.read_at, layout.files)
    except BaseImageError as error:
        raise BaseImageError(f"{path}: {error.detail}") from None
    return BaseImage(file, layout, "", Path(path).name, architecture or UNKNOWN)
