"""Converts a disk image: measured first, inspected after, and then renamed."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import (
    ConversionFailed,
    FormatError,
    Unprocessable,
    UnsafeImage,
    UnusableOutput,
)
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.disk.wrapped_partition import IDENTITY_BYTES, OFFSET, WrappedPartition
from image_service.toolkit.conversion.ova import write_ova
from image_service.toolkit.conversion.qemu_img import run_qemu_img, write_disk_at
from image_service.toolkit.disks.detection import detect_others
from image_service.toolkit.disks.digest import sha256_beside, sha256_of
from image_service.toolkit.disks.opening import OVA, open_image

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.toolkit.conversion.ovf import Appliance
    from image_service.toolkit.conversion.target import Target
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace


@attrs.frozen
class Conversion:
    """The result of a conversion.

    Args:
        size: bytes of the new file.
        virtual_size: bytes of its disk.
        input_sha256: SHA-256 of the file that was read, in hexadecimal; None: it was not asked for.
        output_sha256: SHA-256 of the new file.
    """

    size: int
    virtual_size: int
    input_sha256: str | None
    output_sha256: str | None


def convert(  # noqa: PLR0913 - properties of a conversion
    image: DiskImage,
    out: Path,
    target: Target,
    workspace: Workspace,
    *,
    digests: bool = True,
    appliance: Appliance | None = None,
    wraps_partition: bool = False,
    virtual_size: int | None = None,
) -> Conversion:
    """Convert an open image; `out` is replaced when all is done, and stays as it was on failure.

    Args:
        image: as `open_image` yields it.
        out: a new file, or a regular file that is replaced.
        digests: True: compute the SHA-256 of both files; that of the image while it is converted.
        appliance: the machine that an OVA describes; no other target has one.
        wraps_partition: True: the image is that of a partition, and the new disk has a GPT around it.
        virtual_size: bytes of the new disk, zeros at its end; None: those of the image.

    Raises:
        Unprocessable: the disk has no such form, is larger than `virtual_size`, or is not a lone partition to
            wrap; as a raw file it would be read as an archive; its sectors are not those of the new format.
        UnsafeImage: the image is damaged where only its conversion reads it.
        UnusableOutput: `out` is the image, or no file can be made there.
        NoRoom, TimedOut: a limit is exceeded, or the bytes that are needed can never fit.
        ConversionFailed: qemu-img failed, or the result is not as requested.
    """
    _check_sectors(image, target)
    if wraps_partition:
        image = _wrap_partition(image, workspace)
    elif target.format is DiskFormat.RAW:
        _check_raw(image)
    if virtual_size is not None:
        image = _grow(image, virtual_size, workspace)
    target.check_size(image.disk.virtual_size)
    with suppress(FileNotFoundError, NotADirectoryError):
        if os.path.samestat(out.stat(), os.fstat(image.descriptor)):
            raise UnusableOutput(f"{out} is the image that is converted")
    needed = target.needed_bytes(image.disk.virtual_size, image.stored_extents)
    workspace.reserve(needed, f"{out} ({target})", beside=out)
    with workspace.output(out) as unfinished:
        with sha256_beside(image.descriptor, workspace.pace) if digests else nullcontext() as digest:
            if appliance:
                workspace.reserve(needed, f"the VMDK of {out}")
                write_ova(image, unfinished, target, workspace, appliance)
            else:
                run_qemu_img(image, unfinished, target, workspace)
            input_sha256 = digest.result() if digest else None
        image.check_unchanged()
        return _inspect(unfinished, image.disk.virtual_size, target, workspace, input_sha256)


def _wrap_partition(image: DiskImage, workspace: Workspace) -> DiskImage:
    """Return an open image with a disk whose only partition is the old content.

    Raises:
        Unprocessable: the image has a partition table, or part of a sector.
        NoRoom, TimedOut, ConversionFailed: as `convert`.
    """
    disk = image.disk
    if disk.virtual_size % SECTOR_BYTES:
        raise Unprocessable(
            f"the partition has {disk.virtual_size} bytes: not whole sectors of {SECTOR_BYTES} bytes"
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


def _grow(image: DiskImage, size: int, workspace: Workspace) -> DiskImage:
    """Return an open image with a disk of `size` bytes: zeros follow the old content.

    qemu-img cannot resize every format that it writes, so it reads the disk through an empty overlay.

    Raises:
        Unprocessable: the disk is larger.
    """
    if size < image.disk.virtual_size:
        raise Unprocessable(
            f"the disk of {image.disk.virtual_size} bytes cannot shrink to {size}; name at least its size"
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


def _check_sectors(image: DiskImage, target: Target) -> None:
    """Raise Unprocessable if qemu-img cannot read the disk, or hypervisors would find no partition on it."""
    if image.disk.sector_bytes != SECTOR_BYTES:
        raise Unprocessable(
            f"{image.path} has logical sectors of {image.disk.sector_bytes} bytes, which qemu-img does"
            f" not read: convert it to sectors of {SECTOR_BYTES} by its hypervisor"
        )
    if target.format not in {DiskFormat.VMDK, DiskFormat.VHD, DiskFormat.VHDX}:
        return
    with suppress(FormatError):
        table = read_partitions(image.disk.read_at, image.disk.virtual_size)
        if table and table.sector_size != SECTOR_BYTES:
            raise Unprocessable(
                f"{image.path} has a partition table in sectors of {table.sector_size} bytes; hypervisors"
                f" read {target} with sectors of {SECTOR_BYTES}, and find no partitions: raw and qcow2 fit"
            )


def _check_raw(image: DiskImage) -> None:
    """Raise Unprocessable if the disk has the first bytes of an archive: a raw file would be taken for it."""
    for name in detect_others(image.disk.read_at, image.disk.virtual_size):
        archive = "a tar archive" if name == OVA else f"a {name} file"
        raise Unprocessable(
            f"{image.path}: the disk begins like {archive}, and would be taken for one as a raw file:"
            " convert it to another format"
        )


def _inspect(
    path: Path, virtual_size: int, target: Target, workspace: Workspace, input_sha256: str | None
) -> Conversion:
    """Check that the new file is as requested; compute its digest if the input's is known."""
    try:
        with open_image(path, target.name, pace=workspace.pace, name=f"the result is no {target}") as made:
            disk, size = made.disk, made.size
    except UnsafeImage as error:
        raise ConversionFailed(error.detail) from error
    subformat = target.subformat or disk.subformat
    if (disk.format, disk.subformat, disk.virtual_size) != (target.format, subformat, virtual_size):
        raise ConversionFailed(
            f"the result is {disk.format.value} {disk.subformat} with a disk of {disk.virtual_size} bytes,"
            f" instead of {target} with {virtual_size} bytes"
        )
    if input_sha256 is None:
        return Conversion(size, virtual_size, None, None)
    workspace.progress.start("digest", size)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        workspace.pace(count)
        done += count
        workspace.progress.set(done)

    with path.open("rb") as file:
        output_sha256 = sha256_of(file.fileno(), advance)
    workspace.progress.finish()
    return Conversion(size, virtual_size, input_sha256, output_sha256)
