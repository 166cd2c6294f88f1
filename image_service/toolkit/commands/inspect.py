"""``image-toolkit inspect``: what a disk image is, what is on it, and whether it is safe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.programs.dependencies import require
from image_service.core.errors import UnsafeImage
from image_service.toolkit.commands.arguments import add_common_arguments, open_workspace
from image_service.toolkit.inspection.inspect import inspect_image
from image_service.toolkit.inspection.rendering import to_json, to_text
from image_service.toolkit.workspace.dependencies import DEPENDENCIES_OF_VERBS

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "inspect",
        help="describe a disk image",
        description="Describe a disk image: its format, partitions, file systems, boot records and operating"
        " system, and whether it is safe. The status is 6 if it is not. No other program opens it.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the image")
    parser.add_argument(
        "--no-digest", dest="digest", action="store_false", help="do not compute the SHA-256 of FILE"
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
