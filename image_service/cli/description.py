"""What is told of a base image. The names are those of ``inspect --json``: programs rely on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import UNKNOWN, with_true_minimal
from image_service.coreos.json_file import read_json_object
from image_service.coreos.live_iso import BootFiles  # noqa: TC001 - attrs resolves annotations at run time
from image_service.errors import BaseImageError
from image_service.formats.initrd import read_members
from image_service.formats.iso9660 import IsoFile, read_iso9660
from image_service.formats.reading import read_exactly

if TYPE_CHECKING:
    from image_service.coreos.live_iso import EmbedArea, LiveIso
    from image_service.formats.reading import ReadAt
    from image_service.images.base import BaseImage

_FEATURES = "coreos/features.json"
_PRISTINE_ONLY = "only a pristine ISO makes its minimal one"


@attrs.frozen
class EmbeddedFile:
    """A file that a customization brings: its name in the initrd, and its bytes."""

    name: str
    size: int


@attrs.frozen
class InitrdArea:
    """Room for archives of the initrd.

    Args:
        offset: bytes from the start of the ISO.
        length: bytes.
        members: the regular files in it; what they hold may be secret and is not told.
        unreadable: why they are not known; None: they are.
    """

    offset: int
    length: int
    members: tuple[EmbeddedFile, ...]
    unreadable: str | None


@attrs.frozen
class Arguments:
    """The kernel arguments.

    Args:
        default: those that the ISO came with.
        current: those that it has.
        capacity: bytes that they may have.
        areas: where they are; each ends with one byte more than the capacity.
    """

    default: str
    current: str
    capacity: int
    areas: tuple[IsoFile, ...]


@attrs.frozen
class Minimal:
    """The minimal ISO that is in the full one: its bytes, and its SHA-256 before customization."""

    size: int
    sha256: str


@attrs.frozen
class Description:
    """What is told of a base image.

    Args:
        volume_id: ISO 9660 volume identifier.
        created: ISO 8601; None: the ISO does not say.
        size: bytes of the file.
        architecture: RPM architecture name; None: nothing tells.
        customized: why it is not as its builder made it; None: it is.
        ignition_area: where an Ignition config goes.
        ramdisk_area: where a ramdisk goes, in derived minimal ISOs; None: behind the config.
        kernel_arguments: None: it takes none.
        boot_files: by what they are; None for each that it has not.
        minimal_iso: None: there is none, but one may be derived where there is a rootfs.
        no_minimal_iso: why; None where there is one.
        features: coreos/features.json; None: it has none that can be read.
    """

    volume_id: str
    created: str | None
    size: int
    architecture: str | None
    customized: str | None
    ignition_area: InitrdArea
    ramdisk_area: InitrdArea | None
    kernel_arguments: Arguments | None
    boot_files: BootFiles
    minimal_iso: Minimal | None
    no_minimal_iso: str | None
    features: dict[str, object] | None


def describe(base: BaseImage) -> Description:
    """Describe a base image.

    Args:
        base: open.

    Returns:
        all that is told of it.

    Raises:
        BaseImageError: it became shorter.
        OSError: it cannot be read.
    """
    read_at = base.file.read_at
    customized = base.layout.customized
    layout = base.layout if customized else with_true_minimal(base).layout
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
        minimal_iso=Minimal(minimal.size, minimal.sha256) if minimal else None,
        no_minimal_iso=_PRISTINE_ONLY if customized else layout.no_minimal or None,
        features=_features(read_at, layout.size),
    )


def _initrd_area(read_at: ReadAt, area: EmbedArea) -> InitrdArea:
    try:
        members = read_members(read_exactly(read_at, area.offset, area.length))
    except BaseImageError as error:
        return InitrdArea(area.offset, area.length, (), error.detail)
    files = tuple(EmbeddedFile(name, len(member.data)) for name, member in members.items())
    return InitrdArea(area.offset, area.length, files, None)


def _arguments(read_at: ReadAt, layout: LiveIso) -> Arguments | None:
    areas = layout.kernel_arguments
    if areas is None:
        return None
    places = tuple(IsoFile(span.name, span.offset, span.length) for span in areas.spans)
    return Arguments(areas.default.strip(), areas.read(read_at), areas.size - 1, places)


def _features(read_at: ReadAt, size: int) -> dict[str, object] | None:
    try:
        file = read_iso9660(read_at, size).find_file(_FEATURES)
        return dict(read_json_object(read_at, file).values)
    except BaseImageError:
        return None
