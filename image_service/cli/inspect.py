"""``image-service inspect``: what a base image is, what it holds and what can be made of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import UNKNOWN, open_base
from image_service.cli.command import add_base
from image_service.cli.description import describe
from image_service.cli.table import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from image_service.cli.command import AddParser
    from image_service.cli.description import Arguments, Description, InitrdArea, Minimal
    from image_service.formats.iso9660 import IsoFile

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def add(add_parser: AddParser) -> None:
    """Declare the command.

    Args:
        add_parser: makes its parser.
    """
    parser = add_parser(
        "inspect",
        help="tell what a base image is and what can be made of it",
        description="Tell what a base image is, where it can be customised, and whether it was.",
    )
    add_base(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Describe a base image on standard output.

    Args:
        options: as declared.

    Returns:
        exit status.

    Raises:
        ImageServiceError: it is no base image.
        OSError: it cannot be read.
    """
    with open_base(options.base) as base:
        description = describe(base)
    if options.json:
        told = json.dumps(attrs.asdict(description), indent=2)
    else:
        told = "\n".join(f"{name:18}{printable(value)}" for name, value in _lines(description))
    print(told)  # noqa: T201
    return 0


def _lines(told: Description) -> Iterator[tuple[str, str]]:
    yield "volume", told.volume_id
    yield "created", told.created or UNKNOWN
    yield "size", _bytes(told.size)
    yield "architecture", told.architecture or UNKNOWN
    yield "state", f"customised: {told.customized}" if told.customized else "pristine"
    yield from _area_lines("Ignition area", told.ignition_area)
    if told.ramdisk_area:
        yield from _area_lines("ramdisk area", told.ramdisk_area)
    yield from _argument_lines(told.kernel_arguments)
    for name, file in attrs.asdict(told.boot_files, recurse=False).items():
        if file:
            yield name.replace("_", " "), _place(file)
    yield "minimal ISO", _minimal(told.minimal_iso) or f"none: {told.no_minimal_iso}"
    yield "features", ", ".join(name for name, value in (told.features or {}).items() if value) or "none"


def _area_lines(name: str, area: InitrdArea) -> Iterator[tuple[str, str]]:
    yield name, f"{_bytes(area.length)} at offset {area.offset}"
    for member in area.members:
        yield "", f"{member.name}: {_bytes(member.size)}"
    if area.unreadable:
        yield "", area.unreadable


def _argument_lines(arguments: Arguments | None) -> Iterator[tuple[str, str]]:
    if arguments is None:
        yield "kernel arguments", "the ISO takes none"
        return
    yield "kernel arguments", arguments.current
    if arguments.current != arguments.default:
        yield "by default", arguments.default
    yield "room for them", _bytes(arguments.capacity)
    for area in arguments.areas:
        yield "", _place(area)


def _minimal(minimal: Minimal | None) -> str:
    return f"{_bytes(minimal.size)}, SHA-256 {minimal.sha256}" if minimal else ""


def _place(file: IsoFile) -> str:
    return f"{file.path}: {_bytes(file.length)} at offset {file.offset}"


def _bytes(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count} bytes ({count / unit:.1f} {name})"
    return f"{count} bytes"
