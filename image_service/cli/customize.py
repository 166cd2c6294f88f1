"""``image-service customize``: the image that the service would send, without the service."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import open_base
from image_service.cli.command import add_base, add_output, end_in_order
from image_service.cli.minimal import minimal_image
from image_service.cli.output import choose_output
from image_service.coreos.ignition import check_ignition
from image_service.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.errors import (
    BaseImageError,
    IgnitionInvalid,
    KernelArgumentInvalid,
    Unprocessable,
)
from image_service.formats.initrd import is_initrd
from image_service.images.canvas import full_canvas
from image_service.images.compose import compose
from image_service.images.customization import Customization

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from image_service.cli.command import AddParser
    from image_service.images.base import BaseImage
    from image_service.images.boot_image import BootImage

_EXAMPLES = """\
examples:
  image-service customize live.iso --ignition config.ign -o customised.iso
  image-service customize live.iso --karg-append console=ttyS0 --karg-delete quiet -o serial.iso
  image-service customize live.iso --ignition config.ign --minimal \\
      --rootfs-url http://192.0.2.1/rootfs.img -o minimal.iso
"""


def add(add_parser: AddParser) -> None:
    """Declare the command.

    Args:
        add_parser: makes its parser.
    """
    parser = add_parser(
        "customize",
        help="make a customised ISO",
        description="Write what the service would send: a base image with a customization laid over it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_base(parser)
    parser.add_argument(
        "--ignition", metavar="FILE", help="the Ignition config of the live system, version 3"
    )
    _add_kernel_arguments(parser)
    parser.add_argument(
        "--ramdisk", metavar="FILE", help="an archive that is unpacked over the initrd, behind the config"
    )
    _add_minimal(parser)
    parser.add_argument(
        "--reset",
        action="store_true",
        help="overwrite what the base was customised with, which is refused else",
    )
    add_output(parser)
    parser.set_defaults(run=run, refuse=parser.error)


def _add_kernel_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "kernel arguments",
        "of the live system, each any number of times; first all are deleted, then appended, then replaced",
    )
    for operation, metavar in (
        (Operation.APPEND, "ARG"),
        (Operation.DELETE, "ARG"),
        (Operation.REPLACE, "KEY=OLD=NEW"),
    ):
        group.add_argument(
            f"--karg-{operation.value}",
            metavar=metavar,
            action="append",
            dest="kernel_arguments",
            type=partial(_parse_kernel_argument, operation),
            default=[],
        )


def _add_minimal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "minimal ISO", "without the rootfs, which the machine fetches when it boots"
    )
    group.add_argument("--minimal", action="store_true", help="make one; needs --rootfs-url")
    group.add_argument(
        "--rootfs-url", metavar="URL", type=_parse_url, help="where the machine fetches the rootfs"
    )
    group.add_argument(
        "--nmstate",
        action="store_true",
        help="bring nmstatectl from the rootfs into the initrd, for a --ramdisk with static networks from"
        " OpenShift 4.18 on; runs xorriso",
    )


def _parse_kernel_argument(operation: Operation, value: str) -> KernelArgument:
    argument = KernelArgument(operation, value)
    try:
        check_argument(argument)
    except KernelArgumentInvalid as error:
        raise argparse.ArgumentTypeError(error.detail) from None
    return argument


def _parse_url(url: str) -> str:
    """What is quoted or has blanks would be several kernel arguments, or none."""
    try:
        check_argument(KernelArgument(Operation.APPEND, url))
    except KernelArgumentInvalid as error:
        raise argparse.ArgumentTypeError(error.detail.replace("a kernel argument", "the URL")) from None
    if not {" ", '"'}.isdisjoint(url):
        raise argparse.ArgumentTypeError("the URL has a blank or a double quote")
    return url


def run(options: argparse.Namespace) -> int:
    """Write a customised image.

    Args:
        options: as declared.

    Returns:
        exit status.

    Raises:
        ImageServiceError: base image and customization are not what they must be, or do not go together.
        OSError: a file cannot be read or written.
    """
    _check_usage(options)
    end_in_order()
    customization = _read_customization(options)
    with open_base(options.base) as base:
        output = choose_output(options.output, base.file, force=options.force)
        _check_base(base, reset=options.reset)
        with _compose(base, customization, options, output.directory) as image:
            output.write(image.extents)
    return 0


def _compose(
    base: BaseImage, customization: Customization, options: argparse.Namespace, scratch: Path
) -> AbstractContextManager[BootImage]:
    if not options.minimal:
        return nullcontext(compose(full_canvas(base), customization, ""))
    base = attrs.evolve(base, needs_nmstate=options.nmstate)
    return minimal_image(base, customization, options.rootfs_url, scratch)


def _check_usage(options: argparse.Namespace) -> None:
    """Refuse options that mean nothing together, as ``argparse`` refuses others."""
    if options.minimal != bool(options.rootfs_url):
        options.refuse("--minimal and --rootfs-url go together")
    if options.nmstate and not options.minimal:
        options.refuse("--nmstate goes with --minimal")
    if options.reset and options.minimal:
        options.refuse("--reset does not go with --minimal, which is made of a pristine ISO only")
    customizations = (options.ignition, options.kernel_arguments, options.ramdisk, options.minimal)
    if not any((*customizations, options.reset)):
        options.refuse("there is nothing to customise: give --ignition, --karg-…, --ramdisk or --minimal")


def _check_base(base: BaseImage, *, reset: bool) -> None:
    if base.layout.customized and not reset:
        raise BaseImageError(
            f"{base.file.path} was customised before: {base.layout.customized};"
            " take the pristine image, or --reset"
        )


def _read_customization(options: argparse.Namespace) -> Customization:
    return Customization(
        ignition=_read_ignition(options.ignition) if options.ignition else b"",
        kernel_arguments=tuple(options.kernel_arguments),
        modified=None,
        ramdisk=_read_ramdisk(options.ramdisk) if options.ramdisk else None,
    )


def _read_ignition(path: str) -> bytes:
    config = Path(path).read_bytes()
    try:
        check_ignition(config)
    except IgnitionInvalid as error:
        raise IgnitionInvalid(f"{path}: {error.detail}") from None
    return config


def _read_ramdisk(path: str) -> bytes:
    ramdisk = Path(path).read_bytes()
    if not is_initrd(ramdisk):
        raise Unprocessable(f"{path} is no ramdisk: it must begin as gzip, xz, zstd or newc does")
    return ramdisk
