"""The console script."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING

from image_service.config import Settings
from image_service.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: a restart will not help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``image-service``.

    Args:
        arguments: without the program's name; None: the process's.

    Returns:
        exit status.
    """
    # Until the reactor runs and ends well by itself; as a container's first process we would ignore it else.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parser = argparse.ArgumentParser(prog="image-service", description="Customised CoreOS boot images.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve_parser = commands.add_parser(
        "serve", help="serve images", description="Serve images, configured by the environment alone."
    )
    serve_parser.add_argument(
        "--standalone", action="store_true", help="with the embedded stand-in for assisted-service"
    )
    serve_parser.set_defaults(run=lambda options: serve(standalone=options.standalone))
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


def serve(*, standalone: bool) -> int:
    """Run the twistd plugin with the options that fit a service manager or a container.

    In the foreground, without a pid file, with this service's log, and with exit status 0 on SIGTERM.

    Args:
        standalone: with the embedded stand-in.

    Returns:
        exit status.
    """
    try:
        Settings.from_environment(os.environ, standalone=standalone)
    except ConfigurationError as error:
        print(f"image-service: the configuration is not valid:\n{error.detail}", file=sys.stderr)  # noqa: T201
        return EXIT_CONFIGURATION
    # Imported late: they install the reactor.
    from twisted.scripts._twistd_unix import ServerOptions  # noqa: PLC0415
    from twisted.scripts.twistd import runApp  # noqa: PLC0415

    options = ServerOptions()
    options.parseOptions(
        [
            "--nodaemon",
            "--pidfile=",
            "--logger=image_service.observe.log.observer",
            "image-service",
            *(["--standalone"] if standalone else []),
        ]
    )
    runApp(options)
    return 0
