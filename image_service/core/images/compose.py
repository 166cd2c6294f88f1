"""Composition: a customization laid over a canvas. Pure, and the same bytes on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import IgnitionTooLarge, KernelArgumentsTooLarge, RamdiskTooLarge
from image_service.core.extents import Literal, Overlay, Zeros
from image_service.core.families.coreos.family import IGNITION_FILE
from image_service.core.families.coreos.kargs import edit_arguments
from image_service.core.formats.initrd import compress_archive, store_archive
from image_service.core.formats.iso_edit.editor import IsoPlan
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.boot_areas import edited_areas
from image_service.core.images.boot_image import BootImage, last_modified, make_etag
from image_service.core.images.layouts import newest_layout
from image_service.core.images.relocation import Relocation, relocate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.core.errors import Unprocessable
    from image_service.core.families.coreos.kargs import KernelArgument
    from image_service.core.formats.reading import Span
    from image_service.core.images.canvas import Canvas
    from image_service.core.images.customization import Customization
    from image_service.core.images.layouts import ByteLayout

CONFIG_NAME = "config.ign"
"""The name of the Ignition config in the initrd."""

TOO_LARGE = (IgnitionTooLarge, RamdiskTooLarge, KernelArgumentsTooLarge)
"""What does not fit its area."""

_MAX_COMPRESSED = 2 << 20  # bytes of a config; a larger one takes seconds to compress, and moves
ALIGNMENT = 4
"""The kernel accepts an uncompressed archive only at a multiple of this."""


def compose(
    canvas: Canvas,
    customization: Customization,
    file_name: str,
    layout: ByteLayout | None = None,
    *,
    fixed: tuple[type[Unprocessable], ...] = (),
) -> BootImage:
    """Lay a customization over an ISO; what does not fit in its place moves behind the end of the ISO.

    Args:
        fixed: what is raised instead of moving anything, of `TOO_LARGE`. Without all of them it may read the
            ISO's directories, which blocks.

    Raises:
        Unprocessable: it is invalid, or does not fit and cannot move; with both sizes.
    """
    layout = layout or newest_layout()
    overlays: list[Overlay] = []
    relocation: Relocation | None = None
    try:
        overlays += _lay_initrd(canvas, customization.ignition, customization.ramdisk or b"", layout)
    except (IgnitionTooLarge, RamdiskTooLarge) as reason:
        if isinstance(reason, fixed):
            raise
        initrd = _movable_initrd(customization.ignition, customization.ramdisk or b"")
        relocation = Relocation(reason, initrd=initrd)
    try:
        overlays += _lay_arguments(canvas, customization.kernel_arguments)
    except KernelArgumentsTooLarge as reason:
        if isinstance(reason, fixed):
            raise
        arguments = edit_arguments(canvas.arguments, customization.kernel_arguments)
        relocation = attrs.evolve(relocation or Relocation(reason), arguments=arguments)
    plan = IsoPlan(tuple(overlays)) if relocation is None else relocate(canvas, relocation, overlays)
    return BootImage(
        extents=plan.apply(canvas.extents),
        etag=make_etag(
            canvas.identity, overlays if relocation is None else plan.overlays, layout.version, plan.tail
        ),
        modified=last_modified(canvas.created, customization.modified),
        file_name=file_name,
        areas=edited_areas(canvas.areas, plan, {IGNITION_FILE}),
    )


def _lay_arguments(canvas: Canvas, arguments: Sequence[KernelArgument]) -> Iterator[Overlay]:
    areas = canvas.kernel_arguments
    if areas is None and arguments:
        raise KernelArgumentsTooLarge(
            f"{len(arguments)} kernel arguments do not fit: {canvas.name} has no embed area"
            " for them (0 bytes)"
        )
    if areas is not None and (arguments or not canvas.has_arguments):
        value = edit_arguments(canvas.arguments, arguments)
        yield from [Overlay(area.offset, Literal(area.render(value, areas.size))) for area in areas.areas]


def ignition_archive(config: bytes, capacity: int, layout: ByteLayout) -> bytes:
    """Return an archive with an Ignition config for the initrd; longer than ``capacity`` if none fits."""
    return compress_archive(write_archive([Member(CONFIG_NAME, config)]), capacity, layout.deflate)


def _lay_initrd(canvas: Canvas, config: bytes, ramdisk: bytes, layout: ByteLayout) -> Iterator[Overlay]:
    """Yield the config's archive at the start of its area; the ramdisk after it, or in an area of its own."""
    if canvas.ramdisk is None:
        yield from _fill(canvas.ignition, _join_archives(config, ramdisk, canvas.ignition.length, layout))
        return
    if len(ramdisk) > canvas.ramdisk.length:
        raise RamdiskTooLarge(
            f"the ramdisk of {len(ramdisk)} bytes does not fit its area of {canvas.ramdisk.length} bytes"
        )
    yield from _fill(canvas.ignition, _join_archives(config, b"", canvas.ignition.length, layout))
    yield from _fill(canvas.ramdisk, ramdisk)


def _movable_initrd(config: bytes, ramdisk: bytes) -> tuple[bytes, ...]:
    """Return the content of a file of any size: the config, stored without compression, and the ramdisk."""
    archive = store_archive(write_archive([Member(CONFIG_NAME, config)])) if config else b""
    return archive, bytes(-len(archive) % ALIGNMENT), ramdisk


def _join_archives(config: bytes, ramdisk: bytes, capacity: int, layout: ByteLayout) -> bytes:
    if len(config) > max(_MAX_COMPRESSED, capacity):
        raise IgnitionTooLarge(
            f"the Ignition config of {len(config)} bytes does not fit the embed area of {capacity} bytes"
        )
    limit = (capacity - len(ramdisk)) // ALIGNMENT * ALIGNMENT if ramdisk else capacity
    archive = ignition_archive(config, limit, layout) if config else b""
    if len(archive) > capacity:
        raise IgnitionTooLarge(
            f"the Ignition config of {len(config)} bytes, compressed to {len(archive)} bytes, does not"
            f" fit the embed area of {capacity} bytes; move content to a URL that the config merges"
        )
    if len(archive) > limit:
        raise RamdiskTooLarge(
            f"the ramdisk of {len(ramdisk)} bytes does not fit after the Ignition config"
            f" of {len(archive)} bytes in an area of {capacity} bytes"
        )
    return archive + bytes(-len(archive) % ALIGNMENT) + ramdisk if ramdisk else archive


def _fill(area: Span, data: bytes) -> tuple[Overlay, Overlay]:
    return (
        Overlay(area.offset, Literal(data)),
        Overlay(area.offset + len(data), Zeros(area.length - len(data))),
    )
