"""The console script: the service, and commands for single files."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from image_service import __version__
from image_service.cli import (
    digests,
    doctor,
    examples,
    health,
    images,
    jobs,
    link,
    loadtest,
    serve,
    worker,
)
from image_service.cli.composer import compose
from image_service.cli.iso import customize, extract, inspect, verbs
from image_service.common.command_line import completion
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import (
    EXIT_FAILURE,
    STATUS_OF_SIGNALS,
    CommandParser,
    open_missing_output,
    write_output,
)
from image_service.core.errors import ImageServiceError, describe_os_error

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``image-service`` and return its exit status; `arguments` lack the program's name."""
    open_missing_output()
    status = 0
    fault: ImageServiceError | OSError | None = None
    try:
        options = build_parser().parse_args(arguments)
        status = options.run(options)
    except (ImageServiceError, OSError) as error:
        fault = error
    except KeyboardInterrupt:
        status = STATUS_OF_SIGNALS + signal.SIGINT
    except SystemExit as error:  # --help, invalid arguments, or a signal
        status = int(error.code or 0)
    fault = write_output() or fault
    if isinstance(fault, BrokenPipeError):
        return STATUS_OF_SIGNALS + signal.SIGPIPE
    if fault:
        reason = describe_os_error(fault) if isinstance(fault, OSError) else fault.detail
        tell(f"image-service: {reason}")
        return EXIT_FAILURE
    return status


def build_parser() -> CommandParser:
    """Return the parser of all commands."""
    parser = CommandParser(prog="image-service", description="Customized CoreOS boot images.")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        serve,
        jobs,
        worker,
        compose,
        health,
        images,
        link,
        inspect,
        customize,
        extract,
        verbs,
        digests,
        doctor,
        loadtest,
        examples,
    ):
        command.add(commands.add_parser)
    completion.add(commands.add_parser, parser)
    return parser
