"""``image-service iso``: shows or removes the customization of an ISO, as ``coreos-installer iso`` does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from image_service.cli.iso.base import open_iso_input
from image_service.cli.shared.command import add_file_command
from image_service.cli.shared.output import choose_output, write_output
from image_service.common.command_line.parser import exit_on_signals
from image_service.core.errors import BaseImageError
from image_service.core.formats.initrd import read_members
from image_service.core.formats.reading import read_exactly
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import CONFIG_NAME, compose
from image_service.core.images.customization import Customization

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the commands."""
    parser = add_parser(
        "iso",
        help="show or remove the customization of an ISO",
        description="Show or remove the customization of an ISO, as coreos-installer iso does.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    group = commands.add_parser("ignition", help="the Ignition config")
    add_file_command(
        group.add_subparsers(required=True, metavar="COMMAND").add_parser,
        "show",
        show_ignition,
        help="print the Ignition config",
    )
    group = commands.add_parser("kargs", help="the kernel arguments")
    show = add_file_command(
        group.add_subparsers(required=True, metavar="COMMAND").add_parser,
        "show",
        show_kargs,
        help="print the kernel arguments",
    )
    show.add_argument("-d", "--default", action="store_true", help="those of the pristine ISO")
    add_file_command(commands.add_parser, "reset", reset, writes=True, help="write the pristine ISO")


def show_ignition(options: argparse.Namespace) -> int:
    """Print the Ignition config of an ISO."""
    with open_iso_input(options.base) as iso:
        base = iso.base
        area = base.coreos.ignition
        config = read_members(read_exactly(base.file.read_at, area.offset, area.length)).get(CONFIG_NAME)
    if config is None:
        raise BaseImageError(f"{options.base} contains no Ignition config")
    sys.stdout.buffer.write(config.data)
    return 0


def show_kargs(options: argparse.Namespace) -> int:
    """Print the kernel arguments of an ISO."""
    with open_iso_input(options.base) as iso:
        base = iso.base
        areas = base.coreos.kernel_arguments
        if areas is None:
            raise BaseImageError(f"{options.base} has no embed areas for kernel arguments")
        print(areas.default.strip() if options.default else areas.read(base.file.read_at))  # noqa: T201
    return 0


def reset(options: argparse.Namespace) -> int:
    """Write an ISO without its customization."""
    exit_on_signals()
    with open_iso_input(options.base) as iso:
        base = iso.base
        output = choose_output(options.output, base.file, force=options.force)
        write_output(output, compose(full_canvas(base), Customization(b"", (), modified=None), "").extents)
    return 0
