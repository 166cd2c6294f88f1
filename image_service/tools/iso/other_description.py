"""The description of an ISO of another family than CoreOS."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, NotFound, Unprocessable
from image_service.core.extents import ExtentMap, FileExtent
from image_service.core.families.live.editing import FatMedium, why_nothing_takes
from image_service.core.families.live.medium import LiveMedium
from image_service.core.formats.boot_configuration.finding import Medium, find_configs
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.images.ipxe import netboot_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.images.base_image import BaseImage

_HFS_AT, _HFS = 1024, (b"H+", b"HX")  # the signature of a volume header


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
        config_iso: the label of a second medium with the config; None: the family looks for none.
        no_network_boot: why it does not boot without a medium; None: it does.
        unchanged: what else has the files, and does not see an edit.
    """

    volume_id: str
    created: str | None
    size: int
    family: str
    config: str
    no_config: str | None
    boot_configurations: tuple[DescribedBootConfiguration, ...]
    not_found: tuple[str, ...]
    config_iso: str | None
    no_network_boot: str | None
    unchanged: tuple[str, ...]


def describe_other(base: BaseImage, family: LiveFamily) -> OtherDescription:
    """Describe an open ISO.

    Raises:
        BaseImageError: it cannot be read.
        OSError: same.
    """
    medium = LiveMedium(ExtentMap((FileExtent(base.file, 0, base.file.size),)))
    no_config, found = None, []
    absent: list[str] = []
    try:
        family.place(medium, b"")
    except Unprocessable as error:
        no_config = error.detail
    media: list[tuple[int | None, Medium]] = [
        (None, medium),
        *((image.offset, FatMedium(image)) for image in medium.efi_images),
    ]
    if medium.unified_kernels:
        media, absent = [], [why_nothing_takes(medium)]
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
        config_iso=family.medium and family.medium[0],
        no_network_boot=_why_no_network_boot(base),
        unchanged=tuple(
            f"HFS+ at offset {offset}, which old Macs read: an edit does not change it"
            for offset in _find_hfs(base.file)
        ),
    )


def _why_no_network_boot(base: BaseImage) -> str | None:
    try:
        netboot_of(base)
    except NotFound as error:
        return error.detail
    return None


def _find_hfs(file: BaseFile) -> Iterator[int]:
    table = None
    with suppress(FormatError):
        table = read_partitions(file.read_at, file.size)
    for partition in table.partitions if table else ():
        if file.read_at(partition.offset + _HFS_AT, 2) in _HFS:
            yield partition.offset
