"""The layout of a base image, whose family is looked for once."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.extents import ExtentMap, FileExtent
from image_service.core.families.coreos.family import BOOT_LOADER_DIRECTORIES, COREOS
from image_service.core.families.coreos.live_iso import is_coreos, read_live_iso
from image_service.core.families.iso_layout import BootFiles, BootPart, IsoLayout
from image_service.core.families.live.families import detect_family, get_family
from image_service.core.families.live.medium import LiveMedium
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.filesystems.el_torito import read_boot_images
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.reading import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.formats.iso9660.volume import Iso9660

_DESCRIPTOR_AT, _MAGIC = 16 * SECTOR + 1, b"CD001"
_OTHER_DIRECTORIES = ("loader", "syslinux")


def read_base_layout(file: BaseFile, name: str | None = None) -> tuple[LiveFamily | None, IsoLayout]:
    """Return the family of an ISO, which is None for CoreOS, and its layout.

    Args:
        name: of the family; None: the one that recognizes the ISO.

    Raises:
        FormatError: it cannot be read or edited; says why.
        Unprocessable: there is no family of this name.
    """
    if name == COREOS or (name is None and is_coreos(file.read_at, file.size)):
        _check_is_no_disk(file)
        return None, read_live_iso(file.read_at, file.size)
    medium = LiveMedium(ExtentMap((FileExtent(file, 0, file.size),)))
    family = detect_family(medium) if name is None else get_family(name)
    iso = read_iso9660(file.read_at, file.size)
    live = tuple(family.files.find(medium))
    return family, IsoLayout(
        volume_id=iso.volume_id,
        created=iso.created,
        size=file.size,
        files=_boot_files(medium, family),
        firmware=tuple(_firmware_files(medium)),
        boot_loader=tuple(_loader_files(iso, live)),
        live=live,
    )


def _check_is_no_disk(file: BaseFile) -> None:
    """Refuse an image of a disk, as IncusOS has beside its ISO, by name."""
    if file.read_at(_DESCRIPTOR_AT, len(_MAGIC)) == _MAGIC:
        return
    table = None
    with suppress(FormatError):
        table = read_partitions(file.read_at, file.size)
    if table is not None and table.partitions:
        raise FormatError(
            f"not an ISO but an image of a disk with {len(table.partitions)} partitions: image-toolkit"
            " customize puts a config into one"
        )


def _boot_files(medium: LiveMedium, family: LiveFamily) -> BootFiles:
    """Return the files that boot without the ISO."""
    netboot = family.netboot
    if isinstance(netboot, str):
        return BootFiles()
    rootfs = None
    if netboot.fetches_rootfs:
        rootfs = next(chain.from_iterable(map(medium.find_all, family.files.rootfs)), None)
    for pair in netboot.files:
        kernel, initrd = (next(medium.find_all(pattern), None) for pattern in pair)
        if kernel and initrd and (rootfs or not netboot.fetches_rootfs):
            return BootFiles(kernel, initrd, rootfs)
    return BootFiles()


def _firmware_files(medium: LiveMedium) -> Iterator[Span]:
    """Yield the boot images and their catalog, and the partitions that UEFI boots from."""
    with suppress(FormatError):
        for image in read_boot_images(medium.base.read_at, medium.base.size):
            yield Span("the boot catalog", image.block_at - image.block_at % SECTOR, SECTOR)
            yield Span("a boot image", image.offset, image.length)
    for partition in medium.efi_images:
        yield Span("an EFI system partition", partition.offset, partition.fat.size)


def _loader_files(iso: Iso9660, live: tuple[tuple[BootPart, Span], ...]) -> Iterator[Span]:
    """Yield the files of boot loaders, beside the kernels and initrds that lie among them."""
    others = {file.offset for _, file in live}
    with suppress(FormatError):
        for directory in (*BOOT_LOADER_DIRECTORIES, *_OTHER_DIRECTORIES):
            for file in iso.list_files(directory):
                if file.offset not in others:
                    yield file
