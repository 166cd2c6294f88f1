"""``image-service extract``: writes a file for network boot that a base image contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.cli.iso.base import open_iso_input
from image_service.cli.shared.command import add_file_command
from image_service.cli.shared.output import choose_output, write_output
from image_service.common.command_line.parser import exit_on_signals
from image_service.core.images.ipxe import netboot_of
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import BootArtifact

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser

FILES = {"kernel": BootArtifact.KERNEL, "initrd": BootArtifact.INITRD, "rootfs": BootArtifact.ROOTFS}


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_file_command(
        add_parser,
        "extract",
        run,
        writes=True,
        help="extract a file for network boot from a base image",
        description="Write the kernel, the initrd or the rootfs of a base image, unchanged.",
    )
    parser.add_argument("file", choices=list(FILES), help="which of its files")


def run(options: argparse.Namespace) -> int:
    """Write a file of a base image."""
    exit_on_signals()
    with open_iso_input(options.base, None) as iso:
        base = iso.base
        netboot_of(base)  # raises the reason why a family has no such files
        output = choose_output(options.output, base.file, force=options.force)
        write_output(output, compose_artifact(base, FILES[options.file]).extents)
    return 0
