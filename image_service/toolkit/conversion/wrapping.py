"""Makes a disk of the image of a partition, with a GPT around it; the image itself does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unprocessable
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.disk.wrapped_partition import IDENTITY_BYTES, OFFSET, WrappedPartition
from image_service.toolkit.conversion.qemu_img import write_disk_at

if TYPE_CHECKING:
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace


def wrap_partition(image: DiskImage, workspace: Workspace) -> DiskImage:
    """Return an open image with a disk whose only partition is the old content.

    Raises:
        Unprocessable: the image has a partition table, or part of a sector.
        NoRoom, TimedOut, ConversionFailed: as `convert`.
    """
    disk = image.disk
    if disk.virtual_size % SECTOR_BYTES:
        raise Unprocessable(
            f"the partition has {disk.virtual_size} bytes, which are no whole sectors of {SECTOR_BYTES} bytes"
        )
    if read_partitions(disk.read_at, disk.virtual_size) is not None:
        raise Unprocessable(
            "the image has a partition table; --wrap-partition is for the image of a partition alone"
        )
    beginning = disk.read_at(0, min(IDENTITY_BYTES, disk.virtual_size))
    wrapped = WrappedPartition(disk.virtual_size, beginning)
    stored = sum(length for _, length in image.stored_extents)
    workspace.reserve(stored + OFFSET, "the disk around the partition")
    path = workspace.directory / "wrapped.raw"
    with path.open("xb") as file:
        file.write(wrapped.head())
        file.seek(wrapped.disk_size - len(wrapped.tail()))
        file.write(wrapped.tail())
    write_disk_at(image, path, OFFSET, workspace)
    file_node = {"driver": "file", "filename": str(path)}
    return attrs.evolve(
        image,
        disk=attrs.evolve(disk, virtual_size=wrapped.disk_size),
        node={"driver": "raw", "file": file_node},
    )
