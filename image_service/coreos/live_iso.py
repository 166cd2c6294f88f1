"""A CoreOS live ISO: the areas that its builder reserved for an Ignition config and kernel arguments."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs


@attrs.frozen
class EmbedArea:
    """Where the Ignition config goes.

    Args:
        offset: bytes from the start of the image.
        length: bytes, all zero in a pristine image.
    """

    offset: int
    length: int


@attrs.frozen
class KargsArea:
    """One of the places that hold the kernel arguments: a boot loader's own config.

    Args:
        offset: bytes from the start of the image.
        pad: the byte that fills the area behind ``end``.
        end: the byte that ends the arguments.
    """

    offset: int
    pad: bytes
    end: bytes


@attrs.frozen
class KargsAreas:
    """All places that hold the kernel arguments, each of which must hold the same ones.

    Args:
        default: the arguments that the image came with.
        size: bytes of each area.
        areas: by ascending offset, at least one, none overlapping.
    """

    default: str
    size: int
    areas: tuple[KargsArea, ...]


@attrs.frozen
class LiveIso:
    """What a base image's overlays are placed by.

    Args:
        volume_id: ISO 9660 volume identifier, by which the boot loader finds the image.
        created: when the volume was made, UTC, whole seconds; None: the image does not say.
        size: bytes of the file.
        ignition: where the Ignition config goes.
        kernel_arguments: where kernel arguments go; None: the image takes none.
        customized: why the image is not as its builder made it; None: it is pristine.
    """

    volume_id: str
    created: datetime | None
    size: int
    ignition: EmbedArea
    kernel_arguments: KargsAreas | None
    customized: str | None
