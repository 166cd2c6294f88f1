"""``image-service inspect``: describes a base image. Programs rely on the names in ``inspect --json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.cli.iso.base import UNKNOWN, open_base, with_checked_minimal
from image_service.cli.iso.other_description import describe_other, lines_of_other
from image_service.cli.shared.command import add_file_command
from image_service.common.command_line.parser import printable
from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.live_iso import read_features
from image_service.core.formats.initrd import read_members
from image_service.core.formats.reading import Span, read_exactly

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from image_service.common.command_line.parser import AddParser
    from image_service.core.families.iso_layout import BootFiles
    from image_service.core.formats.reading import ReadAt
    from image_service.core.images.base_image import BaseImage

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
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


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_file_command(
        add_parser,
        "inspect",
        run,
        help="describe a base image",
        description="Describe a base image: where it can be customized, and whether it is.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Describe a base image on standard output."""
    with open_base(options.base, None) as base:
        if base.family is None:
            coreos = describe(base)
            document, lines = attrs.asdict(coreos), list(_lines(coreos))
        else:
            other = describe_other(base, base.family)
            document, lines = attrs.asdict(other), list(lines_of_other(other))
    if options.json:
        text = json.dumps(document, indent=2)
    else:
        text = "\n".join(f"{name:18}{printable(value)}" for name, value in lines)
    print(text)  # noqa: T201
    return 0


def describe(base: BaseImage) -> Description:
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


def _lines(description: Description) -> Iterator[tuple[str, str]]:
    yield "volume", description.volume_id
    yield "created", description.created or UNKNOWN
    yield "size", _bytes(description.size)
    yield "architecture", description.architecture or UNKNOWN
    yield "state", f"customized: {description.customized}" if description.customized else "pristine"
    yield from _area_lines("Ignition area", description.ignition_area)
    if description.ramdisk_area:
        yield from _area_lines("ramdisk area", description.ramdisk_area)
    arguments = description.kernel_arguments
    yield "kernel arguments", arguments.current if arguments else "the ISO takes none"
    if arguments:
        if arguments.current != arguments.default:
            yield "by default", arguments.default
        yield "room for them", _bytes(arguments.capacity)
        yield from (("", _location(area)) for area in arguments.areas)
    for name, file in attrs.asdict(description.boot_files, recurse=False).items():
        if file:
            yield name.replace("_", " "), _location(file)
    minimal = description.minimal_iso
    if minimal:
        yield "minimal ISO", f"{_bytes(minimal.size)}, SHA-256 {minimal.sha256}"
    else:
        yield "minimal ISO", f"none: {description.no_minimal_iso}"
    features = [name for name, value in (description.features or {}).items() if value]
    yield "features", ", ".join(features) or "none"


def _area_lines(name: str, area: InitrdArea) -> Iterator[tuple[str, str]]:
    yield name, f"{_bytes(area.length)} at offset {area.offset}"
    for member in area.members:
        yield "", f"{member.name}: {_bytes(member.size)}"
    if area.unreadable:
        yield "", area.unreadable


def _location(file: Span) -> str:
    return f"{file.path}: {_bytes(file.length)} at offset {file.offset}"


def _bytes(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count} bytes ({count / unit:.1f} {name})"
    return f"{count} bytes"
