"""A CoreOS live ISO: the areas reserved for an Ignition config and kernel arguments, and the files for PXE.

    coreos/igninfo.json    {"file": path, "offset"?: bytes into it, "length"?: bytes}: the Ignition area;
                           where the file is absent, all of images/ignition.img
    coreos/miniso.dat      the recipe of the minimal ISO (minimal_iso.py)
    images/assisted_installer_custom.img
                           in minimal ISOs that were derived: the area of a ramdisk
    images/pxeboot/        vmlinuz (older s390x: kernel.img), initrd.img, rootfs.img
    generic.ins, images/initrd.addrsize
                           s390x only: what is loaded where, and the initrd's address and size

Where the kernel arguments are is in kargs_areas.py.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.coreos.json_file import read_json_object
from image_service.coreos.kargs_areas import KARGS_JSON, KargsAreas, find_kargs_areas
from image_service.coreos.minimal_iso import MinimalIso, read_minimal_iso
from image_service.errors import FileNotInImage, FormatError
from image_service.formats.iso9660 import IsoFile, read_iso9660
from image_service.formats.kernel import HEAD_BYTES, detect_kernel_architecture
from image_service.formats.reading import read_exactly
from image_service.formats.spans import Span, check_disjoint, check_inside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.formats.iso9660 import Iso9660
    from image_service.formats.reading import ReadAt

RAMDISK_FILE = "images/assisted_installer_custom.img"
ROOTFS_FILE = "images/pxeboot/rootfs.img"
MINISO_FILE = "coreos/miniso.dat"
_VOLUME_IDS = ("rhcos-", "fedora-coreos-", "scos-")
_MAX_IGNITION_AREA = 64 * 1024 * 1024  # bytes; every builder so far reserved 256 KiB
_CHUNK = 1024 * 1024


@attrs.frozen
class EmbedArea:
    """Where the Ignition config, or a ramdisk, goes.

    Args:
        offset: bytes from the start of the image.
        length: bytes, all zero in a pristine image.
    """

    offset: int
    length: int


@attrs.frozen
class KargsJson:
    """The file that says where the kernel arguments go.

    Args:
        offset: bytes from the start of the image.
        content: as the builder wrote it.
    """

    offset: int
    content: bytes = attrs.field(repr=False)


@attrs.frozen
class BootFiles:
    """What is booted without the ISO; None: it has no such file.

    Args:
        kernel: Linux.
        initrd: its initial file system.
        rootfs: what the initrd fetches or finds on the medium.
        ins_file: s390x: what is loaded where.
        initrd_addrsize: s390x: the initrd's load address and size.
    """

    kernel: IsoFile | None = None
    initrd: IsoFile | None = None
    rootfs: IsoFile | None = None
    ins_file: IsoFile | None = None
    initrd_addrsize: IsoFile | None = None


@attrs.frozen
class LiveIso:
    """What a base image's overlays are placed by.

    Args:
        volume_id: ISO 9660 volume identifier, by which the boot loader finds the image.
        created: when the volume was made, UTC, whole seconds; None: the image does not say.
        size: bytes of the file.
        ignition: where the Ignition config goes.
        kernel_arguments: where kernel arguments go; None: the image takes none.
        kargs_json: the file that says so; None: there is none.
        ramdisk: where a ramdisk goes; None: there is no such area.
        files: what is booted without the ISO.
        minimal: the recipe of the minimal ISO; None: there is none that could be used.
        no_minimal: why there is none; empty where there is one.
        customized: why the image is not as its builder made it; None: it is pristine.
    """

    volume_id: str
    created: datetime | None
    size: int
    ignition: EmbedArea
    kernel_arguments: KargsAreas | None
    customized: str | None
    kargs_json: KargsJson | None = None
    ramdisk: EmbedArea | None = None
    files: BootFiles = BootFiles()
    minimal: MinimalIso | None = attrs.field(default=None, repr=False)
    no_minimal: str = ""


def read_live_iso(read_at: ReadAt, size: int) -> LiveIso:
    """Read where a live ISO may be customized.

    Args:
        read_at: reads the image.
        size: bytes of the image's file.

    Returns:
        its layout, in which no area leaves its file or overlaps another.

    Raises:
        FormatError: this is not a CoreOS live ISO, or one that cannot be customized safely; the
            message has the name, the offset and the reason.
    """
    iso = read_iso9660(read_at, size)
    if not iso.volume_id.startswith(_VOLUME_IDS):
        raise FormatError(
            f"volume {iso.volume_id!r} is not of CoreOS: it must begin with {', '.join(_VOLUME_IDS)}"
        )
    ignition = _find_ignition_area(iso, read_at)
    kargs = find_kargs_areas(iso, read_at, size)
    ramdisk = _find(iso, RAMDISK_FILE)
    areas = [Span("Ignition", ignition.offset, ignition.length), *(kargs.spans if kargs else ())]
    if ramdisk:
        areas.append(Span(ramdisk.path, ramdisk.offset, ramdisk.length))
    check_disjoint(areas)
    minimal, no_minimal = _find_minimal(iso, read_at, size, kargs)
    return LiveIso(
        volume_id=iso.volume_id,
        created=iso.created,
        size=size,
        ignition=ignition,
        kernel_arguments=kargs,
        customized=" and ".join(_customizations(read_at, ignition, kargs)) or None,
        kargs_json=_read_kargs_json(iso, read_at),
        ramdisk=EmbedArea(ramdisk.offset, ramdisk.length) if ramdisk else None,
        files=_find_boot_files(iso),
        minimal=minimal,
        no_minimal=no_minimal,
    )


def detect_architecture(read_at: ReadAt, files: BootFiles) -> str | None:
    """Return the RPM architecture name of a live ISO by its boot files; None if they do not show it."""
    if files.ins_file:
        return "s390x"
    if files.kernel is None:
        return None
    return detect_kernel_architecture(read_at(files.kernel.offset, min(files.kernel.length, HEAD_BYTES)))


def _find(iso: Iso9660, *paths: str) -> IsoFile | None:
    """The first of the files that is there."""
    for path in paths:
        try:
            return iso.find_file(path)
        except FileNotInImage:
            continue
    return None


def _find_ignition_area(iso: Iso9660, read_at: ReadAt) -> EmbedArea:
    try:
        info = read_json_object(read_at, iso.find_file("coreos/igninfo.json"))
    except FileNotInImage:
        file = iso.find_file("images/ignition.img")
        offset, length = 0, file.length
    else:
        file = iso.find_file(info.text("file"))
        offset = info.count("offset", 0)
        length = info.count("length", file.length - offset)
    check_inside(file.path, offset, length, file.length)
    if not 0 < length <= _MAX_IGNITION_AREA:
        raise FormatError(
            f"the Ignition area in {file.path} must have 1 to {_MAX_IGNITION_AREA} bytes, not {length}"
        )
    return EmbedArea(file.offset + offset, length)


def _read_kargs_json(iso: Iso9660, read_at: ReadAt) -> KargsJson | None:
    """The file as it is; whoever found the areas by it has seen that it is small and right."""
    file = _find(iso, KARGS_JSON)
    return KargsJson(file.offset, read_exactly(read_at, file.offset, file.length)) if file else None


def _find_boot_files(iso: Iso9660) -> BootFiles:
    return BootFiles(
        kernel=_find(iso, "images/pxeboot/vmlinuz", "images/pxeboot/kernel.img", "images/kernel.img"),
        initrd=_find(iso, "images/pxeboot/initrd.img", "images/initrd.img"),
        rootfs=_find(iso, ROOTFS_FILE),
        ins_file=_find(iso, "generic.ins"),
        initrd_addrsize=_find(iso, "images/initrd.addrsize"),
    )


def _find_minimal(
    iso: Iso9660, read_at: ReadAt, size: int, kargs: KargsAreas | None
) -> tuple[MinimalIso | None, str]:
    """The recipe, or why there is none: an image that cannot be made smaller is served as it is."""
    file = _find(iso, MINISO_FILE)
    if file is None:
        return None, f"the ISO has no {MINISO_FILE}"
    if kargs is None:
        return None, "the ISO has no embed areas for kernel arguments"
    try:
        return read_minimal_iso(read_at, file, size), ""
    except FormatError as error:
        return None, error.detail


def _customizations(read_at: ReadAt, ignition: EmbedArea, kargs: KargsAreas | None) -> Iterator[str]:
    """What is not as the builder left it."""
    if not _is_zero(read_at, ignition):
        yield f"the Ignition area at offset {ignition.offset} is not empty"
    if kargs and kargs.read(read_at) != kargs.default.strip():
        yield f"the kernel arguments at offset {kargs.areas[0].offset} are not the default ones"


def _is_zero(read_at: ReadAt, area: EmbedArea) -> bool:
    stop = area.offset + area.length
    chunks = ((at, min(_CHUNK, stop - at)) for at in range(area.offset, stop, _CHUNK))
    return not any(read_exactly(read_at, at, length).strip(b"\0") for at, length in chunks)
