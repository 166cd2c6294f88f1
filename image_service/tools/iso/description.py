"""The description of a CoreOS live ISO. Programs rely on the names of its fields in ``inspect --json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.live_iso import read_features
from image_service.core.families.coreos.minimal_iso import check_minimal_iso
from image_service.core.families.iso_layout import BootFiles  # noqa: TC001 - attrs resolves annotations at run time
from image_service.core.formats.initrd import read_members
from image_service.core.formats.reading import Span, read_exactly
from image_service.core.images.canvas import drop_unusable_minimal

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt
    from image_service.core.images.base_image import BaseImage

UNKNOWN = "unknown"
"""The architecture of a base image that does not reveal it."""

_PRISTINE_ONLY = "only a pristine ISO makes its minimal one"


@attrs.frozen
class EmbeddedFile:
    """A file in an archive: its name in the initrd, and its bytes."""

    name: str
    size: int


@attrs.frozen
class InitrdArea:
    """An embed area for archives that are unpacked over the initrd.

    Args:
        offset: from the start of the ISO.
        length: bytes.
        members: the regular files in it; their content may be secret and is not described.
        unreadable: why they cannot be read; None: they can.
    """

    offset: int
    length: int
    members: tuple[EmbeddedFile, ...]
    unreadable: str | None


@attrs.frozen
class DescribedArguments:
    """The kernel arguments.

    Args:
        default: those of the pristine ISO.
        current: those of this ISO.
        capacity: bytes that they may take.
        areas: embed areas, each one byte larger than the capacity.
    """

    default: str
    current: str
    capacity: int
    areas: tuple[Span, ...]


@attrs.frozen
class DescribedMinimalIso:
    """The result of the recipe: its bytes, and its SHA-256 before customization."""

    size: int
    sha256: str


@attrs.frozen
class Description:
    """The description of a base image.

    Args:
        volume_id: ISO 9660 volume identifier.
        created: ISO 8601; None: unknown.
        size: bytes of the file.
        architecture: RPM architecture name; None: unknown.
        customized: why it is not pristine; None: it is.
        ramdisk_area: where a ramdisk goes, in derived minimal ISOs; None: after the config.
        kernel_arguments: None: the ISO has no embed areas for them.
        boot_files: by their kind; None for each that it lacks.
        minimal_iso: None: it has no usable recipe; one may be derived if there is a rootfs.
        no_minimal_iso: why; None if there is one.
        features: coreos/features.json; None: it has no valid one.
    """

    volume_id: str
    created: str | None
    size: int
    architecture: str | None
    customized: str | None
    ignition_area: InitrdArea
    ramdisk_area: InitrdArea | None
    kernel_arguments: DescribedArguments | None
    boot_files: BootFiles
    minimal_iso: DescribedMinimalIso | None
    no_minimal_iso: str | None
    features: dict[str, object] | None


def describe_coreos(base: BaseImage) -> Description:
    """Describe an open base image; raises BaseImageError if it became shorter, and OSError."""
    read_at = base.file.read_at
    customized = base.coreos.customized
    layout = base.coreos if customized else with_checked_minimal(base).coreos
    minimal = None if customized else layout.minimal
    kargs = layout.kernel_arguments
    return Description(
        volume_id=layout.volume_id,
        created=layout.created.isoformat() if layout.created else None,
        size=layout.size,
        architecture=None if base.architecture == UNKNOWN else base.architecture,
        customized=customized,
        ignition_area=_initrd_area(read_at, layout.ignition),
        ramdisk_area=_initrd_area(read_at, layout.ramdisk) if layout.ramdisk else None,
        kernel_arguments=(
            DescribedArguments(kargs.default.strip(), kargs.read(read_at), kargs.size - 1, kargs.spans)
            if kargs
            else None
        ),
        boot_files=layout.files,
        minimal_iso=DescribedMinimalIso(minimal.size, minimal.sha256) if minimal else None,
        no_minimal_iso=_PRISTINE_ONLY if customized else layout.no_minimal or None,
        features=read_features(read_at, base.iso.size),
    )


def _initrd_area(read_at: ReadAt, area: Span) -> InitrdArea:
    try:
        members = read_members(read_exactly(read_at, area.offset, area.length))
    except BaseImageError as error:
        return InitrdArea(area.offset, area.length, (), error.detail)
    files = tuple(EmbeddedFile(name, len(member.data)) for name, member in members.items())
    return InitrdArea(area.offset, area.length, files, None)


def with_checked_minimal(base: BaseImage) -> BaseImage:
    """Return the image without the recipe of its minimal ISO, and with the reason, if that is not usable."""
    return drop_unusable_minimal(
        base, lambda minimal: check_minimal_iso(minimal, base.file.read_at, lambda: None)
    )
