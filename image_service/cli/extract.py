"""``image-service extract``: a file that is booted without the ISO, taken out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.cli.base import open_base
from image_service.cli.command import add_base, add_output, end_in_order
from image_service.cli.output import choose_output
from image_service.images.netboot import compose_artifact
from image_service.images.reference import BootArtifact

if TYPE_CHECKING:
    import argparse

    from image_service.cli.command import AddParser

FILES = {"kernel": BootArtifact.KERNEL, "initrd": BootArtifact.INITRD, "rootfs": BootArtifact.ROOTFS}


def add(add_parser: AddParser) -> None:
    """Declare the command.

    Args:
        add_parser: makes its parser.
    """
    parser = add_parser(
        "extract",
        help="take a file for network boot out of a base image",
        description="Write the kernel, the initrd or the rootfs of a base image, as it is in it.",
    )
    add_base(parser)
    parser.add_argument("file", choices=FILES, help="which of its files")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write a file of a base image.

    Args:
        options: as declared.

    Returns:
        exit status.

    Raises:
        ImageServiceError: there is no such file.
        OSError: a file cannot be read or written.
    """
    end_in_order()
    with open_base(options.base) as base:
        output = choose_output(options.output, base.file, force=options.force)
        output.write(compose_artifact(base, FILES[options.file]).extents)
    return 0
