"""``image-service inspect``: describes a base image. Programs rely on the names in ``inspect --json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.cli.shared.command import add_file_command
from image_service.cli.shared.input import open_input
from image_service.common.command_line.parser import printable
from image_service.core.errors import BaseImageError
from image_service.tools.iso.description import UNKNOWN, Description
from image_service.tools.iso.iso_file import IsoFile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from image_service.common.command_line.parser import AddParser
    from image_service.core.base_file import BaseFile
    from image_service.core.formats.reading import Span
    from image_service.tools.iso.description import InitrdArea
    from image_service.tools.iso.other_description import OtherDescription

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


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
    with open_input(options.base) as file:
        description = _read(file, options.base).inspect()
    if options.json:
        text = json.dumps(attrs.asdict(description), indent=2)
    else:
        if isinstance(description, Description):
            lines = _lines_of_coreos(description)
        else:
            lines = _lines_of_other(description)
        text = "\n".join(f"{name:18}{printable(value)}" for name, value in lines)
    print(text)  # noqa: T201
    return 0


def _read(file: BaseFile, path: str) -> IsoFile:
    try:
        return IsoFile.read(file, path)
    except BaseImageError as error:
        if "not an ISO 9660 image" not in error.detail:
            raise
        raise BaseImageError(f"{error.detail}; image-toolkit inspect describes disk images") from None


def _lines_of_coreos(description: Description) -> Iterator[tuple[str, str]]:
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


def _lines_of_other(description: OtherDescription) -> Iterator[tuple[str, str]]:
    yield "volume", description.volume_id
    yield "family", description.family
    yield "config", description.no_config or description.config
    if description.config_iso:
        yield "config ISO", f"with the label {description.config_iso}"
    yield "network boot", f"none: {description.no_network_boot}" if description.no_network_boot else "yes"
    for file in description.boot_configurations:
        where = "" if file.fat_offset is None else f" in the FAT at offset {file.fat_offset}"
        yield "boot", f"{file.path}{where} ({file.loader})"
    if not description.boot_configurations:
        yield "boot", "no configuration is found, so kernel arguments cannot be changed"
    for text in description.not_found:
        yield "not found", text
    for text in description.unchanged:
        yield "not changed", text
