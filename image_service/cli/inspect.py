"""``image-service inspect``: describes a base image."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import UNKNOWN, open_base
from image_service.cli.command import add_file_command, printable
from image_service.cli.description import describe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from image_service.cli.command import AddParser
    from image_service.cli.description import DescribedArguments, Description, InitrdArea
    from image_service.formats.reading import Span

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
    with open_base(options.base) as base:
        description = describe(base)
    if options.json:
        text = json.dumps(attrs.asdict(description), indent=2)
    else:
        text = "\n".join(f"{name:18}{printable(value)}" for name, value in _lines(description))
    print(text)  # noqa: T201
    return 0


def _lines(description: Description) -> Iterator[tuple[str, str]]:
    yield "volume", description.volume_id
    yield "created", description.created or UNKNOWN
    yield "size", _bytes(description.size)
    yield "architecture", description.architecture or UNKNOWN
    yield "state", f"customized: {description.customized}" if description.customized else "pristine"
    yield from _area_lines("Ignition area", description.ignition_area)
    if description.ramdisk_area:
        yield from _area_lines("ramdisk area", description.ramdisk_area)
    yield from _argument_lines(description.kernel_arguments)
    for name, file in attrs.asdict(description.boot_files, recurse=False).items():
        if file:
            yield name.replace("_", " "), _location(file)
    minimal = description.minimal_iso
    if minimal:
        yield "minimal ISO", f"{_bytes(minimal.size)}, SHA-256 {minimal.sha256}"
    else:
        yield "minimal ISO", f"none: {description.no_minimal_iso}"
    yield (
        "features",
        ", ".join(name for name, value in (description.features or {}).items() if value) or "none",
    )


def _area_lines(name: str, area: InitrdArea) -> Iterator[tuple[str, str]]:
    yield name, f"{_bytes(area.length)} at offset {area.offset}"
    for member in area.members:
        yield "", f"{member.name}: {_bytes(member.size)}"
    if area.unreadable:
        yield "", area.unreadable


def _argument_lines(arguments: DescribedArguments | None) -> Iterator[tuple[str, str]]:
    if arguments is None:
        yield "kernel arguments", "the ISO takes none"
        return
    yield "kernel arguments", arguments.current
    if arguments.current != arguments.default:
        yield "by default", arguments.default
    yield "room for them", _bytes(arguments.capacity)
    for area in arguments.areas:
        yield "", _location(area)


def _location(file: Span) -> str:
    return f"{file.path}: {_bytes(file.length)} at offset {file.offset}"


def _bytes(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count} bytes ({count / unit:.1f} {name})"
    return f"{count} bytes"
