"""The arguments of ``image-service compose``: images that a jobs role makes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.cli.shared.input import parse_input_name
from image_service.cli.shared.output import parse_output_name
from image_service.common.command_line.values import parse_bytes
from image_service.core.families.coreos.build_names import rpm_architecture
from image_service.jobs.model import ImageType

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser

_EXAMPLES = """\
examples:
  image-service compose start --distribution rhcos-4.17 --type vsphere-ova --ignition config.ign -o sample.ova
  image-service compose start --distribution rhcos-4.19 --type live-installer --ignition config.ign
  image-service compose list --status failure
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "compose",
        help="start and download composes of a jobs role",
        description="Start composes of a running `image-service jobs`, wait for them, and download images.",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_start(verbs.add_parser)
    listing = _add_verb(verbs.add_parser, "list", help="list composes, newest first")
    listing.add_argument("--status", choices=("success", "failure", "pending"), help="only those")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="maximum number (default: 100)")
    status = _add_verb(verbs.add_parser, "status", help="show the status of a compose")
    download = _add_verb(verbs.add_parser, "download", help="download the image of a finished compose")
    cancel = _add_verb(verbs.add_parser, "cancel", help="cancel a compose, which then has failed")
    for verb in (status, download, cancel):
        verb.add_argument("compose", metavar="ID", help="of the compose")
    for verb in (listing, status):
        verb.add_argument("--json", action="store_true", help="print JSON")
    _add_output(download, required=True, text="output file; - is standard output")


def _add_start(add_parser: AddParser) -> None:
    parser = _add_verb(add_parser, "start", help="start a compose, and print its id", epilog=_EXAMPLES)
    parser.add_argument(
        "--distribution",
        required=True,
        metavar="NAME",
        help="an OpenShift version such as rhcos-4.19, or a stream",
    )
    parser.add_argument("--type", required=True, choices=list(map(str, ImageType)), help="of the image")
    parser.add_argument(
        "--arch", default="x86_64", type=rpm_architecture, help="architecture of the image (default: x86_64)"
    )
    parser.add_argument(
        "--ignition",
        type=parse_input_name,
        metavar="FILE",
        help="Ignition config, version 3; - is standard input",
    )
    parser.add_argument(
        "--karg-append", metavar="ARG", action="append", default=[], help="kernel argument; repeatable"
    )
    parser.add_argument("--size", type=parse_bytes, metavar="N", help="virtual size of a disk, such as 16G")
    parser.add_argument(
        "--s3-region", metavar="REGION", help="upload the image to the server's bucket, in this region"
    )
    parser.add_argument("--public", action="store_true", help="let everyone read the upload")
    parser.add_argument("--wait", action="store_true", help="wait until it has ended; 1 if it has failed")
    _add_output(parser, required=False, text="wait, and download the image; - is standard output")


def _add_verb(add_parser: AddParser, name: str, **texts: object) -> argparse.ArgumentParser:
    parser = add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.add_argument(
        "--server",
        metavar="URL|unix:PATH",
        help="of the jobs role, without an API's path (default: its socket, by JOBS_LISTEN and DATA_DIR)",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file of a JSON Web Token, read for each request"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="PEM file of certificate authorities to trust too"
    )
    parser.set_defaults(run=run, verb=name, refuse=parser.error)
    return parser


def _add_output(parser: argparse.ArgumentParser, *, required: bool, text: str) -> None:
    parser.add_argument(
        "-o", "--output", required=required, type=parse_output_name, metavar="FILE", help=text
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")


def run(options: argparse.Namespace) -> int:
    """Run the verb; return the exit status."""
    # Imported here because no other command needs them.
    from image_service.cli.composer.verbs import VERBS  # noqa: PLC0415

    return VERBS[options.verb](options)
