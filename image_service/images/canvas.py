"""Canvases: an ISO's bytes and areas before a customization is laid over them.

    full               the base file, whole
    virtual minimal    spliced from the base file by the recipe in it (coreos/miniso.dat)
    derived minimal    a file that was made from the base

A minimal ISO lacks the rootfs and has a kernel argument that tells where to fetch it, in place of the one
that tells to look for it on the medium.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.coreos.kargs_areas import KargsAreas  # noqa: TC001 - same
from image_service.coreos.live_iso import EmbedArea
from image_service.coreos.minimal_iso import LIVEISO, CopiedFile, rewrite_kargs_json
from image_service.errors import BaseImageError
from image_service.images.extents import (
    Extent,
    ExtentMap,
    FileExtent,
    Literal,
    Overlay,
    Zeros,
    apply_overlays,
)

if TYPE_CHECKING:
    from image_service.coreos.minimal_iso import MinimalIso
    from image_service.files.base_file import BaseFile
    from image_service.images.base import BaseImage

ROOTFS_URL = "coreos.live.rootfs_url="


@attrs.frozen
class Canvas:
    """What an ISO's customization is laid over.

    Args:
        extents: the bytes.
        identity: tells them from those of every other canvas.
        created: when the base was made, UTC.
        ignition: where the Ignition config goes.
        ramdisk: where a ramdisk goes; None: behind the config.
        kernel_arguments: where kernel arguments go; None: nowhere.
        arguments: the kernel arguments to start from.
        has_arguments: whether its areas hold them already.
        name: of the base, for messages.
    """

    extents: ExtentMap
    identity: str
    created: datetime | None
    ignition: EmbedArea
    ramdisk: EmbedArea | None
    kernel_arguments: KargsAreas | None
    arguments: str
    has_arguments: bool
    name: str


def full_canvas(base: BaseImage) -> Canvas:
    """Give the base image as it is."""
    kargs = base.layout.kernel_arguments
    return Canvas(
        extents=ExtentMap((FileExtent(base.file, 0, base.file.size),)),
        identity=base.sha256,
        created=base.layout.created,
        ignition=base.layout.ignition,
        ramdisk=base.layout.ramdisk,
        kernel_arguments=kargs,
        arguments=kargs.default if kargs else "",
        has_arguments=base.layout.customized is None,
        name=base.name,
    )


def spliced_minimal_canvas(base: BaseImage, rootfs_url: str) -> Canvas:
    """Splice the minimal ISO from the base image: not a byte of it is stored.

    Args:
        base: with a recipe.
        rootfs_url: where the machine fetches the rootfs.

    Returns:
        what ``coreos-installer iso extract minimal-iso --rootfs-url`` writes.

    Raises:
        BaseImageError: the base has no usable recipe; says why.
    """
    minimal, kargs = base.layout.minimal, base.layout.kernel_arguments
    if minimal is None or kargs is None:
        raise BaseImageError(f"{base.name} has no minimal ISO in it: {base.layout.no_minimal}")
    kargs = _without_liveiso(_translated(kargs, minimal))
    splice = ExtentMap(tuple(_extent(piece, base.file) for piece in minimal.pieces))
    ignition = base.layout.ignition
    return Canvas(
        extents=apply_overlays(splice, _kargs_json(base, minimal, kargs)),
        identity=f"minimal {base.sha256}",
        created=base.layout.created,
        ignition=EmbedArea(minimal.translate(ignition.offset, ignition.length), ignition.length),
        ramdisk=None,
        kernel_arguments=kargs,
        arguments=_with_rootfs_url(kargs.default, rootfs_url),
        has_arguments=False,
        name=base.name,
    )


def derived_minimal_canvas(base: BaseImage, template: BaseImage, rootfs_url: str) -> Canvas:
    """Give a minimal ISO that was made from a base image.

    Args:
        base: what it was made from.
        template: what was made.
        rootfs_url: where the machine fetches the rootfs.

    Returns:
        the template, whose kernel arguments still lack the URL.
    """
    canvas = full_canvas(template)
    return attrs.evolve(
        canvas,
        created=base.layout.created,
        arguments=_with_rootfs_url(canvas.arguments, rootfs_url),
        has_arguments=False,
        name=base.name,
    )


def _extent(piece: CopiedFile | bytes | int, file: BaseFile) -> Extent:
    match piece:
        case CopiedFile():
            return FileExtent(file, piece.full, piece.length)
        case bytes():
            return Literal(piece)
        case int():
            return Zeros(piece)


def _translated(kargs: KargsAreas, minimal: MinimalIso) -> KargsAreas:
    areas = [attrs.evolve(area, offset=minimal.translate(area.offset, kargs.size)) for area in kargs.areas]
    return attrs.evolve(kargs, areas=tuple(sorted(areas, key=lambda area: area.offset)))


def _without_liveiso(kargs: KargsAreas) -> KargsAreas:
    """Take out the argument by which the initrd looks for the rootfs on the medium."""
    liveiso = next((word for word in kargs.default.split() if word.startswith(LIVEISO)), None)
    if liveiso is None:
        raise BaseImageError(f"the default kernel arguments have no {LIVEISO} to be taken out")
    return attrs.evolve(
        kargs, default=edit_arguments(kargs.default, [KernelArgument(Operation.DELETE, liveiso)])
    )


def _kargs_json(base: BaseImage, minimal: MinimalIso, kargs: KargsAreas) -> list[Overlay]:
    file = base.layout.kargs_json
    if file is None:
        return []
    offset = minimal.translate(file.offset, len(file.content))
    return [Overlay(offset, Literal(rewrite_kargs_json(file.content, kargs.default)))]


def _with_rootfs_url(arguments: str, rootfs_url: str) -> str:
    return edit_arguments(arguments, [KernelArgument(Operation.APPEND, f"{ROOTFS_URL}{rootfs_url}")])
