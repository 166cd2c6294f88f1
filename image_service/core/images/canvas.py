"""Canvases: an ISO's bytes and areas before a customization is laid over it.

    full               the base file, whole
    spliced minimal    spliced from the base file by the recipe in it (coreos/miniso.dat)
    derived minimal    a file that was made from the base

A minimal ISO lacks the rootfs; the kernel argument that searches the medium for it is replaced by one with
the URL to fetch it from.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import BaseImageError, Unprocessable
from image_service.core.extents import (
    Extent,
    ExtentMap,
    FileExtent,
    Literal,
    Overlay,
    Zeros,
    apply_overlays,
)
from image_service.core.families.coreos.family import LIVEISO, ROOTFS_URL
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.core.families.coreos.kargs_areas import KargsAreas, rewrite_kargs_json
from image_service.core.families.coreos.minimal_iso import CopiedFile
from image_service.core.formats.reading import Span  # noqa: TC001 - attrs resolves annotations at run time
from image_service.core.images.boot_areas import BootArea, find_boot_areas

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.families.coreos.minimal_iso import MinimalIso
    from image_service.core.images.base_image import BaseImage


@attrs.frozen
class Canvas:
    """An ISO that a customization can be laid over."""

    extents: ExtentMap
    identity: str  # distinguishes the bytes from those of every other canvas
    created: datetime | None  # when the base was made, UTC
    ignition: Span  # the area of the Ignition config
    ramdisk: Span | None  # the area of a ramdisk; None: after the config
    kernel_arguments: KargsAreas | None
    arguments: str  # the kernel arguments to start from
    has_arguments: bool  # its areas contain them already
    name: str  # of the base, for messages
    areas: tuple[BootArea, ...] = ()  # its parts that a machine reads while it boots


def full_canvas(base: BaseImage) -> Canvas:
    """Return the base image as it is; Unprocessable if it is not of CoreOS."""
    kargs = base.coreos.kernel_arguments
    return Canvas(
        extents=ExtentMap((FileExtent(base.file, 0, base.file.size),)),
        identity=base.sha256,
        created=base.iso.created,
        ignition=base.coreos.ignition,
        ramdisk=base.coreos.ramdisk,
        kernel_arguments=kargs,
        arguments=kargs.default if kargs else "",
        has_arguments=base.coreos.customized is None,
        name=base.name,
        areas=find_boot_areas(base.coreos, base.coreos.ignition),
    )


def spliced_minimal_canvas(base: BaseImage, rootfs_url: str) -> Canvas:
    """Splice the minimal ISO that ``coreos-installer iso extract minimal-iso --rootfs-url`` writes.

    With an empty URL it is the one that is written without that option.

    Raises:
        BaseImageError: the base has no usable recipe; says why.
    """
    minimal, kargs = base.coreos.minimal, base.coreos.kernel_arguments
    if minimal is None or kargs is None:
        raise BaseImageError(
            f"{base.name} contains no usable recipe of a minimal ISO: {base.coreos.no_minimal}"
        )
    areas = [attrs.evolve(area, offset=minimal.translate(area.offset, kargs.size)) for area in kargs.areas]
    liveiso = next((word for word in kargs.default.split() if word.startswith(LIVEISO)), None)
    if liveiso is None:
        raise BaseImageError(
            f"the default kernel arguments do not contain {LIVEISO}, which a minimal ISO must drop"
        )
    default = edit_arguments(kargs.default, [KernelArgument(Operation.DELETE, liveiso)])
    kargs = attrs.evolve(kargs, default=default, areas=areas)
    overlays = []
    if (file := base.coreos.kargs_json) is not None:
        offset = minimal.translate(file.offset, len(file.content))
        overlays.append(Overlay(offset, Literal(rewrite_kargs_json(file.content, kargs.default))))
    ignition = base.coreos.ignition
    return Canvas(
        extents=apply_overlays(_splice(base, minimal), overlays),
        identity=f"minimal {base.sha256}",
        created=base.iso.created,
        ignition=attrs.evolve(ignition, offset=minimal.translate(ignition.offset, ignition.length)),
        ramdisk=None,
        kernel_arguments=kargs,
        arguments=_add_rootfs_url(kargs.default, rootfs_url),
        has_arguments=False,
        name=base.name,
        areas=find_boot_areas(base.coreos, ignition, minimal.translate),
    )


def drop_unusable_minimal(base: BaseImage, check_recipe: Callable[[MinimalIso], None]) -> BaseImage:
    """Remove the recipe of the minimal ISO if ``check_recipe`` raises, or its ISO cannot be customized."""
    if base.family is not None or base.coreos.minimal is None:
        return base
    try:
        spliced_minimal_canvas(base, rootfs_url="")
        check_recipe(base.coreos.minimal)
    except (BaseImageError, Unprocessable) as error:
        return attrs.evolve(base, iso=attrs.evolve(base.coreos, minimal=None, no_minimal=error.detail))
    return base


def derived_minimal_canvas(base: BaseImage, template: BaseImage, rootfs_url: str) -> Canvas:
    """Return a minimal ISO that was made from ``base``: ``template``, whose kernel arguments lack the URL."""
    canvas = full_canvas(template)
    arguments = _add_rootfs_url(canvas.arguments, rootfs_url)
    created = base.iso.created
    return attrs.evolve(canvas, created=created, arguments=arguments, has_arguments=False, name=base.name)


def _splice(base: BaseImage, minimal: MinimalIso) -> ExtentMap:
    extents: list[Extent] = []
    for piece in minimal.pieces:
        match piece:
            case CopiedFile():
                extents.append(FileExtent(base.file, piece.full, piece.length))
            case bytes():
                extents.append(Literal(piece))
            case int():
                extents.append(Zeros(piece))
    return ExtentMap(tuple(extents))


def _add_rootfs_url(arguments: str, rootfs_url: str) -> str:
    if not rootfs_url:
        return arguments
    return edit_arguments(arguments, [KernelArgument(Operation.APPEND, f"{ROOTFS_URL}{rootfs_url}")])
