"""Composition: a customization laid over a canvas. Pure, and the same bytes on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.coreos import kargs
from image_service.errors import IgnitionTooLarge, KernelArgumentsTooLarge, RamdiskTooLarge
from image_service.formats.initrd import compress_archive
from image_service.formats.newc import Member, write_archive
from image_service.images.boot_image import BootImage
from image_service.images.extents import Literal, Overlay, Zeros, apply_overlays
from image_service.images.validators import last_modified, make_etag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.coreos.live_iso import EmbedArea
    from image_service.images.canvas import Canvas
    from image_service.images.customization import Customization

ALIGNMENT = 4
"""The kernel takes an archive that is not compressed only at a multiple of this."""


def compose(canvas: Canvas, customization: Customization, file_name: str) -> BootImage:
    """Lay an Ignition config, kernel arguments and a ramdisk over an ISO.

    Args:
        canvas: the ISO below.
        customization: what is laid over it.
        file_name: what a download is to be saved as.

    Returns:
        the image that is served.

    Raises:
        Unprocessable: the customization is invalid or does not fit; the message has both numbers.
    """
    overlays = [
        *_initrd_overlays(canvas, customization.ignition, customization.ramdisk or b""),
        *_kernel_argument_overlays(canvas, customization.kernel_arguments),
    ]
    return BootImage(
        extents=apply_overlays(canvas.extents, overlays),
        etag=make_etag(canvas.identity, overlays),
        modified=last_modified(canvas.created, customization.modified),
        file_name=file_name,
    )


def ignition_archive(config: bytes, capacity: int) -> bytes:
    """Make the archive that brings a config into the initrd.

    Args:
        config: the Ignition config.
        capacity: bytes that it is to fit.

    Returns:
        an archive, longer than ``capacity`` where none fits.
    """
    return compress_archive(write_archive([Member("config.ign", config)]), capacity)


def _initrd_overlays(canvas: Canvas, config: bytes, ramdisk: bytes) -> Iterator[Overlay]:
    """The config's archive at the start of its area; the ramdisk behind it, or in an area of its own."""
    if canvas.ramdisk is None:
        yield from _fill(canvas.ignition, _joined(config, ramdisk, canvas.ignition.length))
        return
    if len(ramdisk) > canvas.ramdisk.length:
        raise RamdiskTooLarge(
            f"the ramdisk of {len(ramdisk)} bytes does not fit its area of {canvas.ramdisk.length} bytes"
        )
    yield from _fill(canvas.ignition, _joined(config, b"", canvas.ignition.length))
    yield from _fill(canvas.ramdisk, ramdisk)


def _joined(config: bytes, ramdisk: bytes, capacity: int) -> bytes:
    room = (capacity - len(ramdisk)) // ALIGNMENT * ALIGNMENT if ramdisk else capacity
    archive = ignition_archive(config, room) if config else b""
    if len(archive) > capacity:
        raise IgnitionTooLarge(
            f"the Ignition config of {len(config)} bytes, compressed to {len(archive)} bytes, does not"
            f" fit the embed area of {capacity} bytes; move content to a URL that the config merges"
        )
    if len(archive) > room:
        raise RamdiskTooLarge(
            f"the ramdisk of {len(ramdisk)} bytes does not fit behind the Ignition config"
            f" of {len(archive)} bytes in an area of {capacity} bytes"
        )
    return archive + bytes(-len(archive) % ALIGNMENT) + ramdisk if ramdisk else archive


def _fill(area: EmbedArea, data: bytes) -> tuple[Overlay, Overlay]:
    return (
        Overlay(area.offset, Literal(data)),
        Overlay(area.offset + len(data), Zeros(area.length - len(data))),
    )


def _kernel_argument_overlays(canvas: Canvas, arguments: Sequence[kargs.KernelArgument]) -> Sequence[Overlay]:
    """The same string in every area, or none where there is nothing to change."""
    areas = canvas.kernel_arguments
    if areas is None and arguments:
        raise KernelArgumentsTooLarge(
            f"{len(arguments)} kernel arguments do not fit: {canvas.name} has no embed area"
            " for them (0 bytes)"
        )
    if areas is None or (canvas.has_arguments and not arguments):
        return ()
    value = kargs.edit_arguments(canvas.arguments, arguments)
    return [Overlay(area.offset, Literal(kargs.render_area(areas, area, value))) for area in areas.areas]
