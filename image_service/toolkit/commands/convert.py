"""``image-toolkit convert``: a disk image in another format."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.command_line.values import parse_bytes
from image_service.common.programs.dependencies import require
from image_service.core.errors import InvalidArguments, Unprocessable, UnusableOutput
from image_service.toolkit.commands.arguments import add_common_arguments, add_input_format, open_workspace
from image_service.toolkit.conversion.convert import convert
from image_service.toolkit.conversion.ovf import FIRMWARES, GUESTS, Appliance
from image_service.toolkit.conversion.target import OVA, TARGET_NAMES, Target, find_format, find_target
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.workspace.dependencies import DEPENDENCIES_OF_VERBS

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport

_NOT_IN_NAMES = re.compile("^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+")
_EXAMPLES = """\
examples:
  image-toolkit convert rhcos.qcow2 rhcos.ova --ova-memory 16G
  image-toolkit convert rhcos.raw rhcos.vhd --subformat dynamic --input-format raw --json
"""


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "convert",
        help="convert a disk image to another format",
        description="Convert a disk image to another format. The image is inspected before any other\n"
        "program opens it, and the result before it gets its name.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", metavar="FILE", type=Path, help="the disk image, or a block device")
    parser.add_argument("out", metavar="OUT", type=Path, help="the new image")
    add_input_format(parser)
    parser.add_argument(
        "--no-digest", action="store_false", dest="digest", help="compute no SHA-256 of FILE and OUT"
    )
    add_target_arguments(parser)
    add_force(parser)
    add_common_arguments(parser)
    parser.set_defaults(run=run)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Declare ``--force`` of a verb that makes the file OUT, for `check_output`."""
    parser.add_argument("-f", "--force", action="store_true", help="replace OUT if it exists")


def check_output(options: argparse.Namespace) -> None:
    """Raise UnusableOutput if OUT is a file, unless ``--force`` is given."""
    if options.out.is_file() and not options.out.is_symlink() and not options.force:
        raise UnusableOutput(f"{options.out} exists; --force replaces it")


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of formats, for `parse_target` and `describe_appliance`."""
    parser.add_argument(
        "--format",
        "--to",
        choices=TARGET_NAMES,
        help="of OUT (default: that of OUT's suffix, qcow2 if it has none); a suffix of another is refused",
    )
    parser.add_argument(
        "--subformat",
        metavar="NAME",
        help="of VHD: fixed (default), dynamic; of VHDX: dynamic (default), fixed; of VMDK: streamOptimized"
        " (default), monolithicSparse",
    )
    parser.add_argument(
        "--size",
        type=parse_bytes,
        metavar="N",
        help="bytes of OUT's disk, zeros after FILE's; a disk cannot shrink (default: as FILE's)",
    )
    parser.add_argument(
        "--wrap-partition",
        action="store_true",
        help="FILE is the image of a partition: OUT's disk has a GPT around it",
    )
    parser.add_argument("--compress", action="store_true", help="compress the clusters of qcow2 (zlib)")
    parser.add_argument(
        "--ova-name", metavar="NAME", help="name of the virtual machine (default: OUT's, without .ova)"
    )
    parser.add_argument(
        "--ova-cpus", type=int, default=2, metavar="N", help="CPUs of the virtual machine (default: 2)"
    )
    parser.add_argument(
        "--ova-memory", type=parse_bytes, default="4G", metavar="N", help="its memory (default: 4G)"
    )
    parser.add_argument(
        "--ova-os", choices=GUESTS, default="coreos", help="its operating system (default: coreos)"
    )
    parser.add_argument(
        "--ova-firmware", choices=FIRMWARES, default="efi", help="its firmware (default: efi)"
    )


def parse_target(options: argparse.Namespace) -> Target:
    """Return the target of ``--format`` and its options; InvalidArguments if they do not fit.

    A format that is not given becomes that of OUT's suffix.
    """
    try:
        options.format = find_format(options.out.name, options.format)
        return find_target(options.format, options.subformat, compress=options.compress)
    except Unprocessable as error:
        raise InvalidArguments(error.detail) from error


def describe_appliance(options: argparse.Namespace) -> Appliance | None:
    """Return the virtual machine for an OVA; None for other formats."""
    if options.format != OVA:
        return None
    try:
        return Appliance(
            name=options.ova_name or _NOT_IN_NAMES.sub("", options.out.stem)[:64] or "disk",
            cpus=options.ova_cpus,
            memory_bytes=options.ova_memory,
            guest=options.ova_os,
            firmware=options.ova_firmware,
        )
    except Unprocessable as error:
        raise InvalidArguments(error.detail) from error


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Convert an image."""
    require(DEPENDENCIES_OF_VERBS["convert"])
    target, appliance = parse_target(options), describe_appliance(options)
    check_output(options)
    with (
        open_workspace(options) as workspace,
        open_image(options.input, options.input_format, pace=workspace.pace) as image,
    ):
        report.input = {
            "format": image.content,
            "size": image.size,
            "virtual_size": image.disk.virtual_size,
        }
        made = convert(
            image,
            options.out,
            target,
            workspace,
            digests=options.digest,
            appliance=appliance,
            wraps_partition=options.wrap_partition,
            virtual_size=options.size,
        )
    report.input["sha256"] = made.input_sha256
    report.fields = {"warnings": list(image.warnings)}
    report.output = {
        "format": target.name,
        "subformat": target.subformat,
        "size": made.size,
        "virtual_size": made.virtual_size,
        "sha256": made.output_sha256,
    }
    digest = f", SHA-256 {made.output_sha256}" if made.output_sha256 else ""
    disk = f"a disk of {made.virtual_size} bytes in a file of {made.size} bytes"
    warnings = "".join(f"\nwarning: {warning}" for warning in image.warnings)
    report.text = f"{options.out}: {target}, {disk}{digest}{warnings}"
    return 0
