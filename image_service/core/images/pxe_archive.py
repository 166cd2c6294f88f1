"""A compressed archive for network boot: kernel, initrd with the customization, and rootfs.

Its files are compressed already, so the archive stores them uncompressed, and reads any range from the base
image: see core/formats/stored_xz.py.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

from image_service.core.extents import Extent, ExtentMap, Literal, Overlay, Zeros
from image_service.core.families.coreos.family import LIVEISO
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.core.formats.stored_xz import store_in_xz
from image_service.core.images.boot_image import BootImage, last_modified, make_etag
from image_service.core.images.layouts import newest_layout
from image_service.core.images.netboot import compose_artifact, compose_pxe_initrd
from image_service.core.images.reference import BootArtifact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.customization import Customization

ARGUMENTS_FILE = "kernel-arguments"
"""The file with the line of kernel arguments, which no other file can contain; only if there are any."""

_MODE = 0o644


def compose_pxe_archive(base: BaseImage, customization: Customization, file_name: str) -> BootImage:
    """Return a tar in an xz container; raises like `compose_pxe_initrd`, and for invalid kernel arguments."""
    layout = newest_layout()
    initrd = compose_pxe_initrd(base, None, customization, BootArtifact.INITRD.value, layout)
    members = {
        BootArtifact.KERNEL.value: compose_artifact(base, BootArtifact.KERNEL).extents.extents,
        BootArtifact.INITRD.value: initrd.extents.extents,
        BootArtifact.ROOTFS.value: compose_artifact(base, BootArtifact.ROOTFS).extents.extents,
    }
    arguments = Literal(_kernel_arguments(base, customization) if customization.kernel_arguments else b"")
    if arguments.length:
        members[ARGUMENTS_FILE] = (arguments,)
    created = base.iso.created
    tar = _make_tar(members, int(created.timestamp()) if created else 0)
    return BootImage(
        extents=_store(tar),
        etag=make_etag(f"pxe archive {initrd.etag}", [Overlay(0, arguments)], layout.version),
        modified=last_modified(created, customization.modified),
        file_name=file_name,
        is_iso=False,
        content_type="application/x-xz",
    )


def _kernel_arguments(base: BaseImage, customization: Customization) -> bytes:
    """Return the line of kernel arguments: those of the ISO that do not name it, edited."""
    kargs = base.coreos.kernel_arguments
    words = kargs.default.split() if kargs else []
    of_iso = [KernelArgument(Operation.DELETE, word) for word in words if word.startswith(LIVEISO)]
    edits = [*of_iso, *customization.kernel_arguments]
    return edit_arguments(kargs.default if kargs else "", edits).strip().encode() + b"\n"


def _make_tar(members: Mapping[str, tuple[Extent, ...]], modified: int) -> ExtentMap:
    extents: list[Extent] = []
    for name, content in members.items():
        header = tarfile.TarInfo(name)
        header.size = sum(extent.length for extent in content)
        header.mode, header.mtime = _MODE, modified
        extents += [Literal(header.tobuf(tarfile.GNU_FORMAT)), *content]
        if padding := -header.size % tarfile.BLOCKSIZE:
            extents.append(Zeros(padding))
    return ExtentMap((*extents, Zeros(2 * tarfile.BLOCKSIZE)))


def _store(tar: ExtentMap) -> ExtentMap:
    extents: list[Extent] = []
    headers: dict[bytes, Literal] = {}  # nearly all chunks have the same one
    for part in store_in_xz(tar.size):
        if isinstance(part, bytes):
            extents.append(headers.setdefault(part, Literal(part)))
        else:
            extents += tar.slice(part.offset, part.offset + part.length)
    return ExtentMap(tuple(extents))
