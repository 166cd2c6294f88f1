"""From a file to a base image that can be served. Runs in a thread."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from image_service.catalog.digest import sha256_of
from image_service.coreos.live_iso import read_live_iso
from image_service.errors import BaseImageError
from image_service.images.base import BaseImage
from image_service.images.extents import BaseFile
from image_service.images.reference import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.catalog.interruption import Interruption
    from image_service.os_images import OsImage


def open_base_image(entry: OsImage, path: Path, sidecar: Path, interruption: Interruption) -> BaseImage:
    """Open a file, read its layout and take its digest.

    Args:
        entry: what the file is to be.
        path: the file.
        sidecar: where its digest is remembered.
        interruption: ends it from another thread.

    Returns:
        the image; its descriptor belongs to the caller.

    Raises:
        BaseImageError: it is not a pristine CoreOS live ISO.
        Unavailable: it changed meanwhile.
        OSError: it cannot be read.
        Interrupted: the service stops.
    """
    # O_NONBLOCK: a FIFO is refused, not waited for; regular files do not know it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _examine(entry, _base_file(descriptor, path), sidecar, interruption)
    except BaseException:
        os.close(descriptor)
        raise


def _base_file(descriptor: int, path: Path) -> BaseFile:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BaseImageError("is not a regular file")
    return BaseFile(descriptor, status.st_size, str(path))


def _examine(entry: OsImage, file: BaseFile, sidecar: Path, interruption: Interruption) -> BaseImage:
    disconnected = Kind(entry.image_type) is Kind.DISCONNECTED_ISO
    layout = read_live_iso(partial(_read_at, file.descriptor), file.size)
    if layout.customized and not disconnected:
        raise BaseImageError(f"was customised before: {layout.customized}; the pristine image is wanted")
    return BaseImage(
        file=file,
        layout=layout,
        sha256=sha256_of(file, sidecar, interruption),
        version=entry.version,
        openshift_version=entry.openshift_versions[0],
        architecture=entry.cpu_architecture,
        disconnected=disconnected,
    )


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    return os.pread(descriptor, length, offset)
