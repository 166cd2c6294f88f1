"""The console script: the service, and what it does with single files."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from image_service.cli import customize, extract, images, inspect, loadtest, serve
from image_service.cli.command import STATUS_OF_SIGNALS
from image_service.errors import ImageServiceError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (serve, images, inspect, customize, extract, loadtest)
EXIT_FAILURE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``image-service``.

    Args:
        arguments: without the program's name; None: the process's.

    Returns:
        exit status.
    """
    options = _make_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except ImageServiceError as error:
        return _fail(error.detail)
    except BrokenPipeError:
        _forget_output()
        return STATUS_OF_SIGNALS + signal.SIGPIPE
    except OSError as error:
        return _fail(": ".join(filter(None, (error.filename, error.strerror or str(error)))))
    except KeyboardInterrupt:
        return STATUS_OF_SIGNALS + signal.SIGINT
    return status


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="image-service", description="Customised CoreOS boot images.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(partial(commands.add_parser, allow_abbrev=False))
    return parser


def _fail(reason: str) -> int:
    print(f"image-service: {reason}", file=sys.stderr)  # noqa: T201
    return EXIT_FAILURE


def _forget_output() -> None:
    """Let nobody complain at the end that what is still to be written finds no reader."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
