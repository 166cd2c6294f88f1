"""The description of a base image. Its names are those of ``inspect --json``, which programs rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import UNKNOWN, with_checked_minimal
from image_service.coreos.family import FEATURES_JSON
from image_service.coreos.json_file import read_json_object
from image_service.coreos.live_iso import BootFiles  # noqa: TC001 - attrs resolves annotations at run time
from image_service.errors import BaseImageError
from image_service.formats.initrd import read_members
from image_service.formats.iso9660 import read_iso9660
from image_service.formats.reading import Span, read_exactly

if TYPE_CHECKING:
    from image_service.coreos.live_iso import LiveIso
    from image_service.formats.reading import ReadAt
    from image_service.images.base import BaseImage

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
        offset: bytes from the start of the ISO.
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
    """The minimal ISO that the recipe makes: its bytes, and its SHA-256 before customization."""

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
        ignition_area: where an Ignition config goes.
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


def describe(base: BaseImage) -> Description:
    """Describe an open base image.

    Raises:
        BaseImageError: it became shorter.
        OSError: it cannot be read.
    """
    read_at = base.file.read_at
    customized = base.layout.customized
    layout = base.layout if customized else with_checked_minimal(base).layout
    minimal = None if customized else layout.minimal
    return Description(
        volume_id=layout.volume_id,
        created=layout.created.isoformat() if layout.created else None,
        size=layout.size,
        architecture=None if base.architecture == UNKNOWN else base.architecture,
        customized=customized,
        ignition_area=_initrd_area(read_at, layout.ignition),
        ramdisk_area=_initrd_area(read_at, layout.ramdisk) if layout.ramdisk else None,
        kernel_arguments=_arguments(read_at, layout),
        boot_files=layout.files,
        minimal_iso=DescribedMinimalIso(minimal.size, minimal.sha256) if minimal else None,
        no_minimal_iso=_PRISTINE_ONLY if customized else layout.no_minimal or None,
        features=_features(read_at, layout.size),
    )


def _initrd_area(read_at: ReadAt, area: Span) -> InitrdArea:
    try:
        members = read_members(read_exactly(read_at, area.offset, area.length))
    except BaseImageError as error:
        return InitrdArea(area.offset, area.length, (), error.detail)
    files = tuple(EmbeddedFile(name, len(member.data)) for name, member in members.items())
    return InitrdArea(area.offset, area.length, files, None)


def _arguments(read_at: ReadAt, layout: LiveIso) -> DescribedArguments | None:
    areas = layout.kernel_arguments
    if areas is None:
        return None
    return DescribedArguments(areas.default.strip(), areas.read(read_at), areas.size - 1, areas.spans)


def _features(read_at: ReadAt, size: int) -> dict[str, object] | None:
    try:
        file = read_iso9660(read_at, size).find_file(FEATURES_JSON)
        return dict(read_json_object(read_at, file).values)
    except BaseImageError:
        return None
