"""Composition: a customization laid over a base image. Pure, and the same bytes on every machine."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from image_service.coreos import kargs
from image_service.coreos.initrd import encode
from image_service.coreos.newc import Member, write_archive
from image_service.errors import IgnitionTooLarge, KernelArgumentsTooLarge
from image_service.images.boot_image import BootImage
from image_service.images.extents import ExtentMap, FileExtent, Literal, Overlay, Zeros, lay_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.images.base import BaseImage
    from image_service.images.customization import Customization

COMPOSER_VERSION = 1
"""Part of every ETag. It grows whenever the same inputs come to make other bytes."""


def compose(base: BaseImage, customization: Customization, file_name: str) -> BootImage:
    """Lay an Ignition config and kernel arguments over a base image.

    Args:
        base: the image below.
        customization: what is laid over it.
        file_name: what a download is to be saved as.

    Returns:
        the image that is served.

    Raises:
        Unprocessable: the customization is invalid or does not fit; the message has both numbers.
    """
    overlays = [
        *_ignition_overlays(base, customization.ignition),
        *_kernel_argument_overlays(base, customization.kernel_arguments),
    ]
    below = ExtentMap((FileExtent(base.file, 0, base.file.size),))
    return BootImage(
        extents=lay_over(below, overlays),
        etag=_etag(base.sha256, overlays),
        modified=_modified(base.layout.created, customization.modified),
        file_name=file_name,
    )


def _ignition_overlays(base: BaseImage, config: bytes) -> Sequence[Overlay]:
    """The config's archive at the start of its area; the rest of the area zero."""
    area = base.layout.ignition
    encoded = encode(write_archive([Member("config.ign", config)]), area.length)
    if len(encoded) > area.length:
        raise IgnitionTooLarge(
            f"the Ignition config of {len(config)} bytes, compressed to {len(encoded)} bytes, does not"
            f" fit the embed area of {area.length} bytes; move content to a URL that the config merges"
        )
    stop = area.offset + len(encoded)
    return (
        Overlay(area.offset, Literal(encoded)),
        Overlay(stop, Zeros(area.length - len(encoded))),
    )


def _kernel_argument_overlays(base: BaseImage, arguments: Sequence[str]) -> Sequence[Overlay]:
    """The same string in every area, or none where there is nothing to add."""
    if not arguments and base.layout.customized is None:
        return ()
    areas = base.layout.kernel_arguments
    if areas is None:
        if not arguments:
            return ()
        raise KernelArgumentsTooLarge(
            f"{len(arguments)} kernel arguments do not fit: the base image"
            f" {base.version} ({base.architecture}) has no embed area for them (0 bytes)"
        )
    for argument in arguments:
        kargs.check_argument(argument)
    value = kargs.append(areas.default, arguments)
    return [Overlay(area.offset, Literal(kargs.render_area(areas, area, value))) for area in areas.areas]


def _etag(base_sha256: str, overlays: Sequence[Overlay]) -> str:
    identity = sha256(f"{COMPOSER_VERSION} {base_sha256}".encode())
    for overlay in overlays:
        identity.update(f"\n{overlay.offset} {overlay.data.length} ".encode())
        if isinstance(overlay.data, Literal):
            identity.update(overlay.data.data)
    return f'"{identity.hexdigest()[:40]}"'


def _modified(base: datetime | None, customization: datetime | None) -> datetime | None:
    """The later of both: a new base under an old config is a new image.

    A base without a date cannot make an image older than its config is; a config without one could be
    of any age, so there is no date then.
    """
    if customization is None:
        return None
    later = customization if base is None else max(base, customization)
    return later.astimezone(UTC).replace(microsecond=0)
