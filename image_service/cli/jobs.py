"""``image-service jobs``: the jobs role in the foreground."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from image_service.common.concurrency.signals import UNUSED, ignore_signals

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "jobs",
        help="compose images as jobs",
        description="Serve osbuild-composer's API for composes and workers, configured by the environment"
        " alone. Without TEMPORAL_ADDRESS the job engine and a worker are child processes.",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Run the twistd plugin in the foreground, without a pid file.

    Raises:
        SystemExit: the configuration is not valid; see `image_service.app.jobs.tap`.
    """
    # Until the reactor handles the signal; a container's first process would ignore it otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ignore_signals(signal.SIGHUP, *UNUSED)
    # Imported here because no other command needs them.
    from twisted.scripts._twistd_unix import ServerOptions  # noqa: PLC0415
    from twisted.scripts.twistd import runApp  # noqa: PLC0415

    twistd = ServerOptions()
    twistd.parseOptions(["--nodaemon", "--pidfile=", "image-service-jobs"])
    runApp(twistd)
    return os.EX_OK
