"""``image-toolkit inspect``: what a disk image is, what is on it, and whether it is safe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.programs.dependencies import require
from image_service.core.errors import UnsafeImage
from image_service.toolkit.commands.arguments import add_common_arguments, open_workspace
from image_service.toolkit.inspection.inspect import HASHED_BYTES, inspect_image
from image_service.toolkit.inspection.rendering import to_json, to_text
from image_service.toolkit.workspace.dependencies import DEPENDENCIES_OF_VERBS

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport

_MEMBERS = """\
members of --json; sizes and offsets are bytes:
  input               format, size, sha256 (null with --no-digest, if the image is not safe, or if it is
                      left out)
  safe, reasons       whether programs may open the image; why not
  warnings            in what the OVF of an OVA differs from its files and its disk, whose headers count
  left_out[]          what inspect did not do because the file has more than 16 GiB and --digest was not given
  image               format, subformat, size, actual_size (allocated), virtual_size (null: unreadable)
  partition_table     null, or scheme, sector_size, uuid, hybrid, faults (the table is known all the same),
                      damage (null, or why it is not)
  volumes[]           of each partition, or of the whole disk: partition, file_system, damage
    partition         null for the whole disk, or number, type (a GUID, or 0x83), type_name, name, uuid,
                      offset, size
    file_system       null if none is known, or kind (as blkid names it), label, uuid, readable (its files),
                      needs_recovery, problem
  boot                boot_code (of BIOS), bios_boot, efi_system (numbers of partitions), active[],
                      efi_loaders[], el_torito
  iso                 null, or the volume identifier of the ISO 9660 image that the disk is
  operating_systems[] name, id, version, partition, path of each os-release file
  coreos              null, or partition, osname, first_boot, ignition_config, network_keyfiles, platform,
                      damage, entries[] of the boot loader: file, title, version, kernel_arguments, damage
  windows             null, or ntfs[] (partitions whose boot code loads BOOTMGR), efi_files[],
                      registry_hives[], damage
"""


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "inspect",
        help="describe a disk image",
        description="Describe a disk image: its format, partitions, file systems, boot records and\n"
        "operating system, and whether it is safe. The status is 6 if it is not. No other program opens it.",
        epilog=_MEMBERS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the image")
    parser.add_argument(
        "--digest",
        action=argparse.BooleanOptionalAction,
        help=f"compute the SHA-256 of FILE (default: if FILE has at most {HASHED_BYTES >> 30} GiB);"
        " --no-digest does not compare an OVA with its manifest either",
    )
    add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Describe an image; UnsafeImage, after the description, if it is not safe."""
    require(DEPENDENCIES_OF_VERBS["inspect"])
    with open_workspace(options) as workspace:
        description = inspect_image(options.file, workspace, digest=options.digest)
    report.input = {
        "format": description.format,
        "size": description.size,
        "sha256": description.sha256,
    }
    report.fields = to_json(description)
    report.text = to_text(description)
    if description.reasons:
        raise UnsafeImage(f"{options.file}: {'; '.join(description.reasons)}")
    return 0
