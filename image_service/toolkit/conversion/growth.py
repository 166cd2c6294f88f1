"""Makes a disk larger while it is converted; the image itself does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unprocessable

if TYPE_CHECKING:
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace


def grow(image: DiskImage, size: int, workspace: Workspace) -> DiskImage:
    """Return an open image with a disk of `size` bytes: zeros follow the old content.

    qemu-img cannot resize every format that it writes, so it reads the disk through an empty overlay.

    Raises:
        Unprocessable: the disk is larger.
    """
    if size < image.disk.virtual_size:
        raise Unprocessable(
            f"the disk has {image.disk.virtual_size} bytes, and cannot shrink to {size}: name as many or more"
        )
    if size == image.disk.virtual_size:
        return image
    overlay = workspace.directory / "grown.qcow2"
    workspace.run(["qemu-img", "create", "-q", "-f", "qcow2", overlay, str(size)])
    file = {"driver": "file", "filename": str(overlay)}
    return attrs.evolve(
        image,
        disk=attrs.evolve(image.disk, virtual_size=size),
        node={"driver": "qcow2", "file": file, "backing": image.node},
    )
