"""From a file to a base image that can be served. Runs in a thread."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.catalog.digest import Sidecar, sha256_of
from image_service.coreos.live_iso import read_live_iso
from image_service.coreos.minimal_iso import verify
from image_service.errors import BaseImageError, Unprocessable
from image_service.images.base import BaseImage
from image_service.images.canvas import virtual_minimal_canvas
from image_service.images.extents import BaseFile
from image_service.images.reference import Kind
from image_service.os_images import precedence

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.catalog.interruption import Interruption
    from image_service.coreos.iso9660 import ReadAt
    from image_service.os_images import OsImage

_FIRST_WITH_NMSTATE = "4.18.0-ec.0"  # of OpenShift; from then on nmstatectl is not in the initrd


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
    read_at = partial(_read_at, file.descriptor)
    known = Sidecar(sidecar, file)  # first: whatever is read from now on is of this very file
    layout = read_live_iso(read_at, file.size)
    if layout.customized and not disconnected:
        raise BaseImageError(f"was customised before: {layout.customized}; the pristine image is wanted")
    base = BaseImage(
        file=file,
        layout=layout,
        sha256=sha256_of(file, known, interruption),
        version=entry.version,
        architecture=entry.cpu_architecture,
        disconnected=disconnected,
        needs_nmstate=precedence(entry.openshift_versions[0]) >= precedence(_FIRST_WITH_NMSTATE),
    )
    return base if disconnected else _with_usable_minimal(base, read_at, known, interruption)


def _with_usable_minimal(
    base: BaseImage, read_at: ReadAt, known: Sidecar, interruption: Interruption
) -> BaseImage:
    """The image, without a recipe that does not make what it says, or what cannot be customized."""
    minimal = base.layout.minimal
    if minimal is None:
        return base
    try:
        virtual_minimal_canvas(base, rootfs_url="")
        if known.get("minimal_sha256") != minimal.sha256:
            verify(minimal, read_at, interruption.check)
            known.put("minimal_sha256", minimal.sha256)
    except (BaseImageError, Unprocessable) as error:
        return attrs.evolve(base, layout=attrs.evolve(base.layout, minimal=None, no_minimal=error.detail))
    return base


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    return os.pread(descriptor, length, offset)
