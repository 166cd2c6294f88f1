"""``image-service customize``: writes the image that the service would send."""

from __future__ import annotations

import argparse
import shutil
import time
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import attrs

from image_service.cli.iso.base import minimal_image, note_ineffective, open_iso_input
from image_service.cli.shared.command import add_file_command
from image_service.cli.shared.input import STANDARD_INPUT, parse_input_name, read_input
from image_service.cli.shared.output import STANDARD_OUTPUT, choose_output, parse_output_name, write_output
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import exit_on_signals, printable
from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import (
    BaseImageError,
    FormatError,
    IgnitionInvalid,
    KernelArgumentInvalid,
    Unavailable,
    Unprocessable,
)
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.core.formats.initrd_stream import check_ramdisk
from image_service.core.images.boot_image import BootImage
from image_service.settings.os_images import FAMILY_NAMES
from image_service.tools.iso.customization import IsoCustomization, check_rootfs_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.cli.iso.statement import StatementWriter
    from image_service.common.command_line.parser import AddParser
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.images.base_image import BaseImage

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
        "--ignition",
        "--live-ignition",
        type=parse_input_name,
        metavar="FILE",
        action="append",
        default=[],
        help="the Ignition config of the live system, version 3; - is standard input",
    )
    network = parser.add_mutually_exclusive_group()
    network.add_argument(
        "--network-keyfile",
        metavar="FILE",
        action="append",
        default=[],
        help="a NetworkManager keyfile for the live system, which is packed into a ramdisk; repeatable",
    )
    network.add_argument(
        "--ramdisk",
        type=parse_input_name,
        metavar="FILE",
        help="an archive that is unpacked over the initrd, after the config; - is standard input",
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
    for operation, metavar, text in (
        (Operation.APPEND, "ARG", "add ARG, also if it is present"),
        (Operation.DELETE, "ARG", "remove each ARG"),
        (Operation.REPLACE, "KEY=OLD=NEW", "make each KEY=OLD a KEY=NEW"),
    ):
        group.add_argument(
            f"--karg-{operation.value}",
            f"--live-karg-{operation.value}",
            metavar=metavar,
            action="append",
            dest="kernel_arguments",
            type=partial(_parse_kernel_argument, operation),
            default=[],
            help=text,
        )

    group = parser.add_argument_group(
        "other families", "ISOs of Debian, Ubuntu, Fedora and others: see docs/families.md"
    )
    group.add_argument(
        "--family",
        choices=FAMILY_NAMES,
        metavar="NAME",
        help="of the base, if it is not recognized: " + ", ".join(FAMILY_NAMES),
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        type=parse_input_name,
        help="the config of the family: a preseed, kickstart or autoinstall file, …; - is standard input",
    )
    for option, text in (
        ("--put", "on the medium"),
        ("--initrd-put", "in one more initrd"),
        ("--efi-put", "in the EFI system partition"),
    ):
        group.add_argument(
            option,
            metavar="PATH=FILE",
            action="append",
            default=[],
            type=_parse_put,
            help=f"add FILE {text} as PATH, or replace it; repeatable",
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
    group = parser.add_argument_group("statement", "for image-service verify: see docs/provenance.md")
    group.add_argument(
        "--statement", metavar="FILE", type=parse_output_name, help="write a signed statement of the image"
    )
    group.add_argument(
        "--signing-key", metavar="FILE", type=Path, help="PEM file of the private key: ECDSA P-256 or Ed25519"
    )


def _parse_put(value: str) -> tuple[str, str]:
    path, equals, file = value.partition("=")
    if not (path and equals and file):
        raise argparse.ArgumentTypeError(f"{value!a} must be PATH=FILE")
    return path.lstrip("/"), file


def _parse_kernel_argument(operation: Operation, value: str) -> KernelArgument:
    argument = KernelArgument(operation, value)
    try:
        check_argument(argument)
    except KernelArgumentInvalid as error:
        raise argparse.ArgumentTypeError(error.detail) from None
    return argument


def _parse_url(url: str) -> str:
    try:
        check_rootfs_url(url)
    except KernelArgumentInvalid as error:
        raise argparse.ArgumentTypeError(error.detail) from None
    return url


def run(options: argparse.Namespace) -> int:
    """Write a customized image."""
    _check_usage(options)
    exit_on_signals()
    customization = _read_customization(options)
    try:
        _write(customization, options)
    except IgnitionInvalid as error:
        raise IgnitionInvalid(f"{(options.ignition or [options.config])[0]}: {error.detail}") from None
    return 0


def _write(customization: IsoCustomization, options: argparse.Namespace) -> None:
    with open_iso_input(options.base, options.family) as iso:
        base = iso.base
        if (base.family is None and options.config) or (base.family is not None and options.minimal):
            raise BaseImageError(
                f"{options.base} is of {base.family_name}: --ignition and --minimal are for CoreOS, --config"
                " is for other families"
            )
        if base.family is not None and options.ignition:
            check_ignition(customization.config or b"")  # the library takes it for the config of the family
        if base.family is not None and customization.config:
            _note_doubts(base.family, customization.config)
        output = choose_output(options.output, base.file, force=options.force)
        statement = _open_statement(options, base)
        if options.minimal:
            laid_over = iso.lay_over(customization, reset=options.reset)
            template = attrs.evolve(base, needs_nmstate=options.nmstate)
            scratch = output.parent if output else Path(gettempdir())
            with minimal_image(template, laid_over, options.rootfs_url, scratch) as image:
                write_output(output, image.extents)
                if statement:
                    statement.write(_named(image, output), base, customization.config or b"")
            return
        customized = iso.customize(customization, reset=options.reset)
        note_ineffective(customized.ineffective)
        write_output(output, customized.extents)
        if statement:
            image = BootImage(
                customized.extents, etag="", modified=None, file_name="", areas=customized.areas
            )
            statement.write(_named(image, output), base, customization.config or b"")


def _open_statement(options: argparse.Namespace, base: BaseImage) -> StatementWriter | None:
    if options.statement is None:
        return None
    # Imported here because it takes a while, and most calls write none.
    from image_service.cli.iso.statement import StatementWriter  # noqa: PLC0415

    return StatementWriter.open(options.statement, options.signing_key, base, force=options.force)


def _named(image: BootImage, output: Path | None) -> BootImage:
    return attrs.evolve(image, file_name=output.name if output else "standard output")


def _note_doubts(family: LiveFamily, config: bytes) -> None:
    """Note on standard error what the family's own program has against a config, if it is installed.

    It may be for another release than the ISO's, so that its doubts refuse nothing.
    """
    validator = family.validator
    if validator is None or shutil.which(validator.name) is None:
        return
    # Imported here because it takes a while, and most calls need none.
    from image_service.common.programs.validation import find_fault  # noqa: PLC0415

    try:
        fault = find_fault(validator.command, validator.fault, config, Interruption())
    except Unavailable as error:
        tell(f"image-service: note: the {family.config} is not checked by its own program: {error}", "warn")
        return
    if fault:
        tell(f"image-service: note: {validator.name} does not accept the {family.config}: {fault}", "warn")


def _check_usage(options: argparse.Namespace) -> None:
    """Refuse combinations of options that ``argparse`` cannot express."""
    if bool(options.statement) != bool(options.signing_key):
        options.refuse("--statement requires --signing-key, and the other way round")
    if options.statement == options.output == STANDARD_OUTPUT:
        options.refuse("standard output can be written once only")
    if options.minimal != bool(options.rootfs_url):
        options.refuse("--minimal requires --rootfs-url, and the other way round")
    if options.nmstate and not options.minimal:
        options.refuse("--nmstate requires --minimal")
    if options.reset and options.minimal:
        options.refuse("--reset cannot be used with --minimal, which requires a pristine ISO")
    if len(options.ignition) > 1:
        options.refuse("one --ignition is possible; a config merges others by ignition.config.merge")
    if options.ignition and options.config:
        options.refuse("--ignition is for CoreOS, and --config for other families")
    if [options.base, *options.ignition, options.ramdisk, options.config].count(STANDARD_INPUT) > 1:
        options.refuse("standard input can be read once only")
    files = (*options.put, *options.initrd_put, *options.efi_put, options.config)
    initrds = (*options.ignition, *options.network_keyfile, options.ramdisk)
    if not any((*files, *initrds, options.kernel_arguments, options.minimal, options.reset)):
        options.refuse(
            "nothing to customize; use --ignition, --config, --karg-…, --put, --network-keyfile, --ramdisk,"
            " --minimal or --reset"
        )


def _read_customization(options: argparse.Namespace) -> IsoCustomization:
    config, ramdisk = None, None
    for name in options.ignition:
        config = read_input(name)
    if options.config:
        config = read_input(options.config)
    if options.ramdisk:
        ramdisk = read_input(options.ramdisk)
        try:
            doubts = check_ramdisk(ramdisk, "its content", time.monotonic)
        except FormatError as error:
            raise Unprocessable(f"{options.ramdisk} is not a ramdisk: {error.detail}") from None
        for doubt in doubts:
            tell(f"image-service: note: {printable(options.ramdisk)}: {doubt}", "warn")
    edits: dict[Operation, list[str]] = {operation: [] for operation in Operation}
    for argument in options.kernel_arguments:
        edits[argument.operation].append(argument.value)
    return IsoCustomization(
        config=config,
        append=edits[Operation.APPEND],
        delete=edits[Operation.DELETE],
        replace=edits[Operation.REPLACE],
        ramdisk=ramdisk,
        network_keyfiles=_read_keyfiles(options.network_keyfile),
        files=_read_files(options.put),
        initrd_files=_read_files(options.initrd_put),
        efi_files=_read_files(options.efi_put),
    )


def _read_files(puts: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    return {path: Path(file).read_bytes() for path, file in puts}


def _read_keyfiles(names: Sequence[str]) -> dict[str, bytes]:
    paths = {Path(name).name: Path(name) for name in names}
    if len(paths) != len(names):
        raise Unprocessable("the files of --network-keyfile must have different names")
    return {name: path.read_bytes() for name, path in paths.items()}
