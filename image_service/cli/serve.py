"""``image-service serve``: the service in the foreground, for a service manager or a container."""

from __future__ import annotations

import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from image_service.common.concurrency.signals import UNUSED, ignore_signals

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "serve", help="serve images", description="Serve images, configured by the environment alone."
    )
    parser.add_argument(
        "--standalone", action="store_true", help="with the embedded stand-in for assisted-service"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="print the settings in force, faults and warnings, and exit with 0, or 78 if there are faults;"
        " nothing is written, and no port bound",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help=(
            "with --check: do not try to reach assisted-service, the database and the origins of base images"
        ),
    )
    parser.set_defaults(run=partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the twistd plugin in the foreground, without a pid file.

    Raises:
        SystemExit: the configuration is not valid; see `image_service.tap`.
    """
    if options.offline and not options.check:
        parser.error("--offline needs --check")
    if options.check:
        from image_service.cli.check import check  # noqa: PLC0415 - no other command needs it

        return check(standalone=options.standalone, offline=options.offline)
    # Until the reactor handles the signal; a container's first process would ignore it otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ignore_signals(signal.SIGHUP, *UNUSED)
    # Imported here because they install the reactor.
    from twisted.scripts._twistd_unix import ServerOptions  # noqa: PLC0415
    from twisted.scripts.twistd import runApp  # noqa: PLC0415

    twistd = ServerOptions()
    twistd.parseOptions(
        [
            "--nodaemon",
            "--pidfile=",
            "image-service",
            *(["--standalone"] if options.standalone else []),
        ]
    )
    runApp(twistd)
    return 0
