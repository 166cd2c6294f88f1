"""``image-service serve``: the service in the foreground, for a service manager or a container."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from image_service.errors import ConfigurationError
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    import argparse

    from image_service.cli.command import AddParser

EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: a restart will not help


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "serve", help="serve images", description="Serve images, configured by the environment alone."
    )
    parser.add_argument(
        "--standalone", action="store_true", help="with the embedded stand-in for assisted-service"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the twistd plugin in the foreground, without a pid file, with this service's log."""
    # Until the reactor handles the signal; a container's first process would ignore it otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        Settings.from_environment(os.environ, standalone=options.standalone)
    except ConfigurationError as error:
        print(f"image-service: the configuration is not valid:\n{error.detail}", file=sys.stderr)  # noqa: T201
        return EXIT_CONFIGURATION
    # Imported here because they install the reactor.
    from twisted.scripts._twistd_unix import ServerOptions  # noqa: PLC0415
    from twisted.scripts.twistd import runApp  # noqa: PLC0415

    twistd = ServerOptions()
    twistd.parseOptions(
        [
            "--nodaemon",
            "--pidfile=",
            "--logger=image_service.observability.log.observer",
            "image-service",
            *(["--standalone"] if options.standalone else []),
        ]
    )
    runApp(twistd)
    return 0
