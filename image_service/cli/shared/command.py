"""Common arguments and input of the commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.cli.shared.input import parse_input_name
from image_service.cli.shared.output import parse_output_name
from image_service.core.formats.hosts import host_fault, is_web_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.command_line.parser import AddParser


def add_file_command(
    add_parser: AddParser,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    writes: bool = False,
    **texts: object,
) -> argparse.ArgumentParser:
    """Declare a command that reads a base image; `texts` are arguments of the parser."""
    parser = add_parser(name, **texts)
    parser.add_argument(
        "base",
        type=parse_input_name,
        metavar="BASE.iso",
        help="a CoreOS live ISO, which is only read; - is standard input",
    )
    if writes:
        parser.add_argument(
            "-o",
            "--output",
            required=True,
            type=parse_output_name,
            metavar="FILE",
            help="output file; - is standard output",
        )
        parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
    parser.set_defaults(run=run)
    return parser


def add_admin_arguments(parser: argparse.ArgumentParser, *other_names: str) -> None:
    """Declare the arguments that say how a running service is reached, for `AdminClient`."""
    parser.add_argument(
        "--admin",
        *other_names,
        type=parse_web_url,
        metavar="URL",
        help="base URL of the ADMIN_LISTEN of a running service; of its LISTEN_PORT if that is not set",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file of the token, as in ADMIN_TOKEN_FILE"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="PEM file of certificate authorities to trust too"
    )


def parse_web_url(url: str) -> str:
    """Return an argument that is the base URL of a service."""
    if not is_web_url(url):
        fault = host_fault(url) or "must be an http or https URL, such as http://localhost:8081"
        raise argparse.ArgumentTypeError(fault)
    return url
