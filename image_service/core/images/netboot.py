"""Images that are booted without an ISO: boot artifacts, and the initrd with archives after it."""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING

from image_service.core.errors import BaseImageError, NotFound
from image_service.core.extents import Extent, ExtentMap, FileExtent, Literal, Overlay, Zeros
from image_service.core.images.boot_image import BootImage, last_modified, make_etag
from image_service.core.images.compose import ALIGNMENT, ignition_archive
from image_service.core.images.layouts import newest_layout
from image_service.core.images.reference import BootArtifact

if TYPE_CHECKING:
    from image_service.core.formats.reading import Span
    from image_service.core.images.base_image import BaseImage, NmstateImage
    from image_service.core.images.customization import Customization
    from image_service.core.images.layouts import ByteLayout

_ADDRESS_BYTES = 8


def compose_artifact(base: BaseImage, which: BootArtifact) -> BootImage:
    """Return one boot artifact of a base image, unchanged; NotFound if it has no such file."""
    files = base.iso.files
    found = {
        BootArtifact.KERNEL: files.kernel,
        BootArtifact.INITRD: files.initrd,
        BootArtifact.ROOTFS: files.rootfs,
        BootArtifact.INS_FILE: files.ins_file,
    }[which]
    file = _require(base, found, which.value)
    return BootImage(
        extents=ExtentMap((FileExtent(base.file, file.offset, file.length),)),
        etag=make_etag(f"{base.sha256} {file.offset} {file.length}", ()),
        modified=base.iso.created,
        file_name=which.value,
        is_iso=False,
        is_public=True,
    )


def compose_pxe_initrd(
    base: BaseImage,
    nmstate: NmstateImage | None,
    customization: Customization,
    file_name: str,
    layout: ByteLayout | None = None,
) -> BootImage:
    """Append an Ignition config, a ramdisk and nmstatectl to the initrd of a base image.

    Each archive is at a multiple of four bytes, as the kernel requires. Kernel arguments are ignored;
    nmstatectl is appended only after a ramdisk. NotFound if the base image has no initrd.
    """
    initrd = _require(base, base.iso.files.initrd, "initrd.img")
    layout = layout or newest_layout()
    config = customization.ignition
    appended = [Literal(ignition_archive(config, sys.maxsize, layout))] if config else []
    identity = f"initrd {base.sha256}"
    extents: list[Extent] = [FileExtent(base.file, initrd.offset, initrd.length), *_padding(initrd.length)]
    if customization.ramdisk:
        appended.append(Literal(customization.ramdisk))
    overlays: list[Overlay] = []
    for data in appended:
        overlays.append(Overlay(sum(extent.length for extent in extents), data))
        extents += [data, *_padding(data.length)]
    if customization.ramdisk and nmstate:
        identity += f" {nmstate.sha256}"
        extents.append(FileExtent(nmstate.file, 0, nmstate.file.size))
    return BootImage(
        extents=ExtentMap(tuple(extents)),
        etag=make_etag(identity, overlays, layout.version),
        modified=last_modified(base.iso.created, customization.modified),
        file_name=file_name,
        is_iso=False,
    )


def compose_initrd_addrsize(
    base: BaseImage, initrd: BootImage, file_name: str, layout: ByteLayout | None = None
) -> BootImage:
    """Return the load address, from the base image, and the length of an initrd: 8 bytes each, big-endian."""
    file = _require(base, base.iso.files.initrd_addrsize, "initrd.addrsize")
    if file.length < _ADDRESS_BYTES:
        raise BaseImageError(f"{file.path} of {base.name} has {file.length} bytes; 16 are right")
    layout = layout or newest_layout()
    size = Literal(struct.pack(">Q", initrd.size))
    return BootImage(
        extents=ExtentMap((FileExtent(base.file, file.offset, _ADDRESS_BYTES), size)),
        etag=make_etag(f"addrsize {base.sha256}", [Overlay(_ADDRESS_BYTES, size)], layout.version),
        modified=initrd.modified,
        file_name=file_name,
        is_iso=False,
    )


def _require(base: BaseImage, file: Span | None, name: str) -> Span:
    if file is None or not file.length:
        raise NotFound(f"{base.name} has no {name}")
    return file


def _padding(length: int) -> tuple[Zeros, ...]:
    """Return the zeros between ``length`` bytes and an archive."""
    padding = -length % ALIGNMENT
    return (Zeros(padding),) if padding else ()
