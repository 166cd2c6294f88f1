"""``image-service customize``: writes the image that the service would send."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import attrs

from image_service.cli.iso.base import compose_with_notes, minimal_image, open_base
from image_service.cli.shared.command import add_file_command
from image_service.cli.shared.input import STANDARD_INPUT, parse_input_name, read_input
from image_service.cli.shared.output import choose_output, write_output
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import exit_on_signals, printable
from image_service.common.programs.environment import environment_of
from image_service.core.errors import (
    BaseImageError,
    FormatError,
    IgnitionInvalid,
    KernelArgumentInvalid,
    Unprocessable,
)
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.core.families.coreos.live_iso import read_features
from image_service.core.families.coreos.network_keyfiles import FEATURE, check_keyfile_name, pack_keyfiles
from image_service.core.families.live.family import MediumEdit
from image_service.core.formats.hosts import ascii_host
from image_service.core.formats.initrd_stream import check_ramdisk
from image_service.core.images.canvas import full_canvas
from image_service.core.images.customization import Customization
from image_service.core.images.live import compose_live
from image_service.settings.os_images import FAMILY_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from image_service.common.command_line.parser import AddParser
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage

_VALIDATOR_SECONDS = 60.0
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
    """Refuse a URL that would not be one kernel argument, and name the character to replace."""
    if not url:
        raise argparse.ArgumentTypeError("the URL is empty")
    for position, character in enumerate(url):
        try:
            check_argument(KernelArgument(Operation.APPEND, character))  # which has no quotes around it
        except KernelArgumentInvalid:
            raise argparse.ArgumentTypeError(
                f"the URL has {character!a} at position {position}, which boot loaders do not pass on alike;"
                f" write {quote(character, errors='surrogateescape')} if the server takes it for the same, or"
                " use a URL without it"
            ) from None
    try:
        if host := urlsplit(url).hostname:
            ascii_host(host)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None
    return url


def run(options: argparse.Namespace) -> int:
    """Write a customized image."""
    _check_usage(options)
    exit_on_signals()
    customization = _read_customization(options)
    with open_base(options.base, options.family) as base:
        if base.family is not None:
            _write_other(base, base.family, customization, options)
            return 0
        if options.config or options.put or options.initrd_put or options.efi_put:
            raise BaseImageError(
                f"{options.base} is of CoreOS: its config is --ignition, and --put is for other families"
            )
        features = read_features(base.file.read_at, base.file.size) or {}
        if options.network_keyfile and not features.get(FEATURE):
            raise BaseImageError(f"{options.base} does not support --network-keyfile: it lacks {FEATURE}")
        output = choose_output(options.output, base.file, force=options.force)
        if base.coreos.customized and not options.reset:
            raise BaseImageError(
                f"{options.base} is already customized: {base.coreos.customized};"
                " use the pristine image, or --reset"
            )
        composed: AbstractContextManager[BootImage]
        if options.minimal:
            template = attrs.evolve(base, needs_nmstate=options.nmstate)
            scratch = output.parent if output else Path(gettempdir())
            composed = minimal_image(template, customization, options.rootfs_url, scratch)
        else:
            composed = nullcontext(compose_with_notes(full_canvas(base), customization))
        with composed as image:
            write_output(output, image.extents)
    return 0


def _write_other(
    base: BaseImage, family: LiveFamily, customization: Customization, options: argparse.Namespace
) -> None:
    """Write a customized image of another family."""
    if options.minimal or customization.ramdisk is not None:
        raise BaseImageError(
            f"{options.base} is of the family {family.name}: --minimal, --ramdisk and --network-keyfile are"
            " for CoreOS"
        )
    if options.config:
        customization = attrs.evolve(customization, ignition=read_input(options.config))
        if options.config != STANDARD_INPUT:
            _note_doubts(family, options.config)
    more = MediumEdit(
        files={path: Path(file).read_bytes() for path, file in options.put},
        initrd={path: Path(file).read_bytes() for path, file in options.initrd_put},
        efi_files={path: Path(file).read_bytes() for path, file in options.efi_put},
    )
    output = choose_output(options.output, base.file, force=options.force)
    write_output(output, compose_live(base, customization, "", more=more).extents)


def _note_doubts(family: LiveFamily, config: str) -> None:
    """Note on standard error what the family's own program has against a config, if it is installed.

    It may be for another release than the ISO's, so that its doubts refuse nothing.
    """
    program, *arguments = family.validator or ("",)
    path = shutil.which(program) if program else None
    if path is None:
        return
    shown = printable(" ".join((program, *arguments, config)))
    try:
        done = subprocess.run(  # noqa: S603 - a program of this machine, with arguments of ours
            [path, *arguments, config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # it may quote passwords
            env=environment_of(os.environ),
            timeout=_VALIDATOR_SECONDS,
            check=False,
        )
        doubt = "is not accepted by" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired):
        doubt = "cannot be checked by"
    if doubt:
        tell(f"image-service: note: the {family.config} {doubt} {program}; to see why: {shown}", "warn")


def _check_usage(options: argparse.Namespace) -> None:
    """Refuse combinations of options that ``argparse`` cannot express."""
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


def _read_customization(options: argparse.Namespace) -> Customization:
    ignition, ramdisk = b"", None
    for name in options.ignition:
        ignition = read_input(name)
        try:
            check_ignition(ignition)
        except IgnitionInvalid as error:
            raise IgnitionInvalid(f"{name}: {error.detail}") from None
    if options.network_keyfile:
        ramdisk = pack_keyfiles(_read_keyfiles(options.network_keyfile))
    if options.ramdisk:
        ramdisk = read_input(options.ramdisk)
        try:
            doubts = check_ramdisk(ramdisk, "its content", time.monotonic)
        except FormatError as error:
            raise Unprocessable(f"{options.ramdisk} is not a ramdisk: {error.detail}") from None
        for doubt in doubts:
            tell(f"image-service: note: {printable(options.ramdisk)}: {doubt}", "warn")
    return Customization(ignition, tuple(options.kernel_arguments), modified=None, ramdisk=ramdisk)


def _read_keyfiles(names: Sequence[str]) -> dict[str, bytes]:
    paths = {Path(name).name: Path(name) for name in names}
    if len(paths) != len(names):
        raise Unprocessable("the files of --network-keyfile must have different names")
    for name in paths:
        check_keyfile_name(name)
    return {name: path.read_bytes() for name, path in paths.items()}
