"""Composition: a customization laid over a canvas. Pure, and the same bytes on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import IgnitionTooLarge, KernelArgumentsTooLarge, RamdiskTooLarge
from image_service.core.extents import Literal, Overlay, Zeros, apply_overlays
from image_service.core.families.coreos.kargs import edit_arguments
from image_service.core.formats.initrd import compress_archive
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.boot_image import BootImage, last_modified, make_etag
from image_service.core.images.layouts import newest_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import Span
    from image_service.core.images.canvas import Canvas
    from image_service.core.images.customization import Customization
    from image_service.core.images.layouts import ByteLayout

CONFIG_NAME = "config.ign"
"""The name of the Ignition config in the initrd."""

ALIGNMENT = 4
"""The kernel accepts an uncompressed archive only at a multiple of this."""


def compose(
    canvas: Canvas, customization: Customization, file_name: str, layout: ByteLayout | None = None
) -> BootImage:
    """Lay a customization over an ISO; Unprocessable, with both sizes, if it is invalid or does not fit."""
    layout = layout or newest_layout()
    overlays = list(_lay_initrd(canvas, customization.ignition, customization.ramdisk or b"", layout))
    areas, arguments = canvas.kernel_arguments, customization.kernel_arguments
    if areas is None and arguments:
        raise KernelArgumentsTooLarge(
            f"{len(arguments)} kernel arguments do not fit: {canvas.name} has no embed area"
            " for them (0 bytes)"
        )
    if areas is not None and (arguments or not canvas.has_arguments):
        value = edit_arguments(canvas.arguments, arguments)
        overlays += [Overlay(area.offset, Literal(area.render(value, areas.size))) for area in areas.areas]
    return BootImage(
        extents=apply_overlays(canvas.extents, overlays),
        etag=make_etag(canvas.identity, overlays, layout.version),
        modified=last_modified(canvas.created, customization.modified),
        file_name=file_name,
        areas=canvas.areas,
    )


def ignition_archive(config: bytes, capacity: int, layout: ByteLayout) -> bytes:
    """Return an archive with an Ignition config for the initrd; longer than ``capacity`` if none fits."""
    return compress_archive(write_archive([Member(CONFIG_NAME, config)]), capacity, layout.huffman)


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


def _join_archives(config: bytes, ramdisk: bytes, capacity: int, layout: ByteLayout) -> bytes:
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
