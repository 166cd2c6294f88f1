"""Base images outside DATA_DIR: opened without a digest, and nothing is stored beside them."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.coreos.live_iso import detect_architecture, read_live_iso
from image_service.coreos.minimal_iso import check_minimal_iso
from image_service.errors import BaseImageError
from image_service.files.base_file import BaseFile
from image_service.images.base import BaseImage
from image_service.images.canvas import drop_unusable_minimal

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN = "unknown"
"""The architecture of a base image that does not reveal it."""


@contextmanager
def open_base(path: str) -> Iterator[BaseImage]:
    """Open a base image, which may be customized, without its digest, which takes seconds.

    Raises:
        BaseImageError: it is no CoreOS live ISO that can be customized.
        OSError: it cannot be read.
    """
    try:
        file = BaseFile.open(Path(path))
    except BaseImageError as error:
        raise BaseImageError(f"{path} {error.detail}") from None
    with closing(file):
        try:
            layout = read_live_iso(file.read_at, file.size)
            architecture = detect_architecture(file.read_at, layout.files)
        except BaseImageError as error:
            raise BaseImageError(f"{path}: {error.detail}") from None
        yield BaseImage(file, layout, "", Path(path).name, architecture or UNKNOWN)


def with_checked_minimal(base: BaseImage) -> BaseImage:
    """Return the image without the recipe of its minimal ISO, and with the reason, if that is not usable."""
    return drop_unusable_minimal(
        base, lambda minimal: check_minimal_iso(minimal, base.file.read_at, lambda: None)
    )
