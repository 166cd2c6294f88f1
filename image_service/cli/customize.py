"""``image-service customize``: writes the image that the service would send."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import minimal_image, open_base
from image_service.cli.command import add_file_command, exit_on_signals
from image_service.cli.output import choose_output, write_output
from image_service.coreos.ignition import check_ignition
from image_service.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.errors import BaseImageError, IgnitionInvalid, KernelArgumentInvalid, Unprocessable
from image_service.formats.initrd import is_initrd
from image_service.images.canvas import full_canvas
from image_service.images.compose import compose
from image_service.images.customization import Customization

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from image_service.cli.command import AddParser
    from image_service.images.boot_image import BootImage

_EXAMPLES = """\
examples:
  image-service customize live.iso --ignition config.ign -o customized.iso
  image-service customize live.iso --karg-append console=ttyS0 --karg-delete quiet -o serial.iso
  image-service customize live.iso --ignition config.ign --minimal \\
      --rootfs-url http://192.0.2.1/rootfs.img -o minimal.iso
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_file_command(
        add_parser,
        "customize",
        run,
        writes=True,
        help="make a customized ISO",
        description="Write what the service would send: a base image with a customization laid over it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(refuse=parser.error)
    parser.add_argument(
        "--ignition", metavar="FILE", help="the Ignition config of the live system, version 3"
    )
    parser.add_argument(
        "--ramdisk", metavar="FILE", help="an archive that is unpacked over the initrd, after the config"
    )
    parser.add_argument(
        "--reset",
        action="store_true",
        help="remove an existing customization of the base, which is otherwise refused",
    )

    group = parser.add_argument_group(
        "kernel arguments",
        "of the live system; repeatable; deletions apply first, then additions, then replacements",
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
        help="copy nmstatectl from the rootfs into the initrd, for a --ramdisk with static networks from"
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
    """Refuse a URL that would not be one kernel argument."""
    try:
        check_argument(KernelArgument(Operation.APPEND, url))
    except KernelArgumentInvalid as error:
        raise argparse.ArgumentTypeError(error.detail.replace("a kernel argument", "the URL")) from None
    if not {" ", '"'}.isdisjoint(url):
        raise argparse.ArgumentTypeError("the URL contains a blank or a double quote")
    return url


def run(options: argparse.Namespace) -> int:
    """Write a customized image."""
    _check_usage(options)
    exit_on_signals()
    customization = _read_customization(options)
    with open_base(options.base) as base:
        output = choose_output(options.output, base.file, force=options.force)
        if base.layout.customized and not options.reset:
            raise BaseImageError(
                f"{options.base} is already customized: {base.layout.customized};"
                " use the pristine image, or --reset"
            )
        composed: AbstractContextManager[BootImage]
        if options.minimal:
            template = attrs.evolve(base, needs_nmstate=options.nmstate)
            scratch = output.parent if output else Path(gettempdir())
            composed = minimal_image(template, customization, options.rootfs_url, scratch)
        else:
            composed = nullcontext(compose(full_canvas(base), customization, ""))
        with composed as image:
            write_output(output, image.extents)
    return 0


def _check_usage(options: argparse.Namespace) -> None:
    """Refuse combinations of options that ``argparse`` cannot express."""
    if options.minimal != bool(options.rootfs_url):
        options.refuse("--minimal requires --rootfs-url, and the other way round")
    if options.nmstate and not options.minimal:
        options.refuse("--nmstate requires --minimal")
    if options.reset and options.minimal:
        options.refuse("--reset cannot be used with --minimal, which requires a pristine ISO")
    customizations = (options.ignition, options.kernel_arguments, options.ramdisk, options.minimal)
    if not any((*customizations, options.reset)):
        options.refuse("nothing to customize; use --ignition, --karg-…, --ramdisk, --minimal or --reset")


def _read_customization(options: argparse.Namespace) -> Customization:
    ignition, ramdisk = b"", None
    if options.ignition:
        ignition = Path(options.ignition).read_bytes()
        try:
            check_ignition(ignition)
        except IgnitionInvalid as error:
            raise IgnitionInvalid(f"{options.ignition}: {error.detail}") from None
    if options.ramdisk:
        ramdisk = Path(options.ramdisk).read_bytes()
        if not is_initrd(ramdisk):
            raise Unprocessable(
                f"{options.ramdisk} is not a ramdisk; it must be a gzip, xz, zstd or newc archive"
            )
    return Customization(ignition, tuple(options.kernel_arguments), modified=None, ramdisk=ramdisk)
