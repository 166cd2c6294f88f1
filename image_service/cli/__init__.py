"""The console script: the service, and commands for single files."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from image_service import __version__
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

_COMMANDS = {
    "serve": "serve",
    "jobs": "jobs",
    "worker": "worker",
    "compose": "composer.compose",
    "health": "health",
    "images": "images",
    "infra-env": "infra_env.command",
    "link": "link",
    "boot": "boot",
    "inspect": "iso.inspect",
    "customize": "iso.customize",
    "extract": "iso.extract",
    "iso": "iso.verbs",
    "digests": "digests",
    "verify": "verification.command",
    "doctor": "doctor",
    "loadtest": "loadtest",
    "examples": "examples",
}
"""The commands, and the modules of this package that they are in."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``image-service`` and return its exit status; `arguments` lack the program's name."""
    open_missing_output()
    status = 0
    fault: ImageServiceError | OSError | None = None
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        options = build_parser(*words[:1]).parse_args(words)
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


def build_parser(command: str = "") -> CommandParser:
    """Return the parser of one command, or of all of them if `command` names none.

    To import the modules of all takes longer than most commands do.
    """
    parser = CommandParser(prog="image-service", description="Customized boot images.")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in [_COMMANDS[command]] if command in _COMMANDS else _COMMANDS.values():
        import_module(f"{__name__}.{module}").add(commands.add_parser)
    completion.add(commands.add_parser, parser)
    return parser
