"""``image-service digests``: writes the digest list of a file that is to be a remote base image."""

from __future__ import annotations

import sys
from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from image_service.cli.shared.input import open_input, parse_input_name
from image_service.common.command_line.parser import exit_on_signals
from image_service.common.command_line.progress_bar import ProgressBar
from image_service.core.formats.digest_list import BLOCK_BYTES, render_digest_list

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "digests",
        help="print the digest list of a remote base image",
        description="Print the SHA-256 of each MiB of a file: with this list, the service checks what it"
        " fetches of a remote base image. OS_IMAGES needs its URL as digests, and its own SHA-256 as"
        " digests_sha256.",
    )
    parser.add_argument(
        "file",
        type=parse_input_name,
        metavar="FILE",
        help="of the base image, which is only read; - is standard input",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the digest list of a file."""
    exit_on_signals()
    offsets = accumulate(repeat(BLOCK_BYTES), initial=0)
    with open_input(options.file) as file, ProgressBar(file.size) as progress:
        for line in render_digest_list(
            lambda length: file.read_at(next(offsets), length), file.size, on_block=progress.advance
        ):
            sys.stdout.write(line)
    return 0
