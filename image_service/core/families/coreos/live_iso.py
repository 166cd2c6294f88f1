"""The layout of a CoreOS live ISO: its embed areas and boot files; family.py has their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import BaseImageError, FileNotInImage, FormatError
from image_service.core.families.coreos import family
from image_service.core.families.coreos.json_file import read_json_object
from image_service.core.families.coreos.kargs_areas import KargsAreas, find_kargs_areas
from image_service.core.families.coreos.minimal_iso import MinimalIso, read_minimal_iso
from image_service.core.families.iso_layout import BootFiles, IsoLayout
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.kernel import HEAD_BYTES, detect_kernel_architecture
from image_service.core.formats.reading import Span, SpanReader, check_disjoint, check_inside, read_exactly

if TYPE_CHECKING:
    from image_service.core.formats.iso9660.volume import Iso9660
    from image_service.core.formats.reading import ReadAt

_MAX_IGNITION_AREA = 64 * 1024 * 1024  # bytes; every builder so far reserved 256 KiB
_CHUNK = 1024 * 1024


@attrs.frozen
class KargsJson:
    """The file that describes the areas of kernel arguments: where it is, and its content."""

    offset: int
    content: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class LiveIso(IsoLayout):
    """The layout of a live ISO of CoreOS. A part that the image does not have is None."""

    ignition: Span  # the area of the Ignition config, all zero in a pristine image
    kernel_arguments: KargsAreas | None
    customized: str | None  # how the image differs from its builder's; None: it is pristine
    kargs_json: KargsJson | None = None
    ramdisk: Span | None = None  # the area of a ramdisk
    minimal: MinimalIso | None = attrs.field(default=None, repr=False)
    no_minimal: str = ""  # why there is no usable recipe of a minimal ISO


def is_coreos(read_at: ReadAt, size: int) -> bool:
    """Return True for a CoreOS live ISO, by its files or its label, and for a file that is not an ISO."""
    try:
        iso = read_iso9660(read_at, size)
    except FormatError:
        return True
    return is_coreos_iso(iso)


def is_coreos_iso(iso: Iso9660) -> bool:
    """Return True for an ISO with the label of CoreOS, or a file that only CoreOS has, damaged or not."""
    if iso.volume_id.startswith(family.VOLUME_IDS):
        return True
    for path in family.MARKS:
        try:
            iso.find_file(path)
        except FileNotInImage:
            continue
        except FormatError:
            return True
        return True
    return False


def read_live_iso(read_at: ReadAt, size: int) -> LiveIso:
    """Return the layout of a live ISO, in which no area leaves its file or overlaps another.

    FormatError if this is not a CoreOS live ISO, or one that cannot be customized safely.
    """
    iso = read_iso9660(read_at, size)
    if not is_coreos_iso(iso):
        raise FormatError(
            f"volume {iso.volume_id!r} is not of CoreOS: it has none of {', '.join(family.MARKS)}, and its"
            f" identifier does not begin with {', '.join(family.VOLUME_IDS)}"
        )
    ignition = _find_ignition_area(iso, read_at)
    kargs = find_kargs_areas(iso, read_at, size)
    kargs_json = None
    if file := _find(iso, family.KARGS_JSON):  # whose size and content are checked now
        kargs_json = KargsJson(file.offset, read_exactly(read_at, file.offset, file.length))
    ramdisk = _find(iso, family.RAMDISK_FILE)
    areas = [ignition, *(kargs.spans if kargs else ()), ramdisk]
    check_disjoint(filter(None, areas))
    minimal, no_minimal = _find_minimal(iso, read_at, size, kargs)
    changes = []
    read_area, length = SpanReader(read_at, ignition), ignition.length
    if any(read_area(at, min(_CHUNK, length - at)).strip(b"\0") for at in range(0, length, _CHUNK)):
        changes.append(f"the Ignition area at offset {ignition.offset} is not empty")
    if kargs and kargs.read(read_at) != kargs.default.strip():
        changes.append(f"the kernel arguments at offset {kargs.areas[0].offset} are not the default ones")
    firmware, boot_loader = _find_loaders(iso)
    return LiveIso(
        volume_id=iso.volume_id,
        created=iso.created,
        size=size,
        ignition=ignition,
        kernel_arguments=kargs,
        customized=" and ".join(changes) or None,
        kargs_json=kargs_json,
        ramdisk=ramdisk,
        files=BootFiles(
            kernel=_find(iso, *family.KERNEL_FILES),
            initrd=_find(iso, *family.INITRD_FILES),
            rootfs=_find(iso, family.ROOTFS_FILE),
            ins_file=_find(iso, family.INS_FILE),
            initrd_addrsize=_find(iso, family.INITRD_ADDRSIZE_FILE),
        ),
        firmware=firmware,
        boot_loader=boot_loader,
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


def read_features(read_at: ReadAt, size: int) -> dict[str, object] | None:
    """Return the content of coreos/features.json of an image of ``size`` bytes; None: it has no valid one."""
    try:
        return dict(
            read_json_object(read_at, read_iso9660(read_at, size).find_file(family.FEATURES_JSON)).values
        )
    except BaseImageError:
        return None


def _find(iso: Iso9660, *paths: str) -> Span | None:
    """Return the first of the files that exists."""
    for path in paths:
        try:
            return iso.find_file(path)
        except FileNotInImage:
            continue
    return None


def _find_loaders(iso: Iso9660) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Return the files that firmware reads, and those of boot loaders.

    None if a directory is damaged: an image can be served without them.
    """
    try:
        firmware = tuple(filter(None, (_find(iso, path) for path in family.FIRMWARE_FILES)))
        files = [file for path in family.BOOT_LOADER_DIRECTORIES for file in iso.list_files(path)]
    except FormatError:
        return (), ()
    offsets = {file.offset for file in firmware}
    return firmware, tuple(file for file in files if file.offset not in offsets)


def _find_ignition_area(iso: Iso9660, read_at: ReadAt) -> Span:
    try:
        info = read_json_object(read_at, iso.find_file(family.IGNINFO_JSON))
    except FileNotInImage:
        found = _find(iso, family.IGNITION_FILE)
        if found is None:
            raise FormatError(
                f"volume {iso.volume_id!r} has no area for an Ignition config: neither {family.IGNINFO_JSON}"
                f" nor {family.IGNITION_FILE} is there"
            ) from None
        file, offset, length = found, 0, found.length
    else:
        file = iso.find_file(info.text("file"))
        offset = info.count("offset", 0)
        length = info.count("length", file.length - offset)
    check_inside(file.path, offset, length, file.length)
    if not 0 < length <= _MAX_IGNITION_AREA:
        raise FormatError(
            f"the Ignition area in {file.path} must have 1 to {_MAX_IGNITION_AREA} bytes, not {length}"
        )
    return Span("Ignition", file.offset + offset, length)


def _find_minimal(
    iso: Iso9660, read_at: ReadAt, size: int, kargs: KargsAreas | None
) -> tuple[MinimalIso | None, str]:
    """Return the recipe, or why there is none: without one, the image is still served as it is."""
    file = _find(iso, family.MINISO_FILE)
    if file is None:
        return None, f"the ISO has no {family.MINISO_FILE}"
    if kargs is None:
        return None, "the ISO has no embed areas for kernel arguments"
    try:
        return read_minimal_iso(read_at, file, size), ""
    except FormatError as error:
        return None, error.detail
