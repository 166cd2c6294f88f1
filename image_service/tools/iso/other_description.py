"""The description of an ISO of another family than CoreOS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, Unprocessable
from image_service.core.extents import ExtentMap, FileExtent
from image_service.core.families.live.editing import FatMedium
from image_service.core.families.live.medium import LiveMedium
from image_service.core.formats.boot_configuration.finding import Medium, find_configs

if TYPE_CHECKING:
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.images.base_image import BaseImage


@attrs.frozen
class DescribedBootConfiguration:
    """A boot configuration.

    Args:
        path: on the medium, or in the FAT file system.
        loader: the boot loader that reads it.
        fat_offset: where the FAT file system begins that has it; None: it is a file of the ISO.
    """

    path: str
    loader: str
    fat_offset: int | None


@attrs.frozen
class OtherDescription:
    """The description of such an ISO.

    Args:
        created: ISO 8601; None: unknown.
        size: bytes of the file.
        config: what its config is.
        no_config: why the ISO has no place for a config, and what would work; None: it has one.
        boot_configurations: whose kernel arguments are edited.
        not_found: configurations that others include by variables, or why none can be read.
    """

    volume_id: str
    created: str | None
    size: int
    family: str
    config: str
    no_config: str | None
    boot_configurations: tuple[DescribedBootConfiguration, ...]
    not_found: tuple[str, ...]


def describe_other(base: BaseImage, family: LiveFamily) -> OtherDescription:
    """Describe an open ISO.

    Raises:
        BaseImageError: it cannot be read.
        OSError: same.
    """
    medium = LiveMedium(ExtentMap((FileExtent(base.file, 0, base.file.size),)))
    no_config, found, absent = None, [], []
    try:
        family.place(medium, b"")
    except Unprocessable as error:
        no_config = error.detail
    media: list[tuple[int | None, Medium]] = [
        (None, medium),
        *((image.offset, FatMedium(image)) for image in medium.efi_images),
    ]
    for offset, each in media:
        try:
            configs = find_configs(each)
        except FormatError as error:
            absent.append(error.detail)
            continue
        found += [
            DescribedBootConfiguration(file.path, file.dialect.name.lower().replace("_", "-"), offset)
            for file in configs.files
        ]
        absent += configs.unresolved
    return OtherDescription(
        volume_id=base.iso.volume_id,
        created=base.iso.created.isoformat() if base.iso.created else None,
        size=base.iso.size,
        family=family.name,
        config=family.config,
        no_config=no_config,
        boot_configurations=tuple(found),
        not_found=tuple(absent),
    )
