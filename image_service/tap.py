"""The twistd plugin's options, and the service made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.python import usage

from image_service.app.processes.supervisor import Supervisor
from image_service.app.reactor import get_reactor
from image_service.app.service import ImageService
from image_service.core.errors import describe_os_error
from image_service.server.observability.log import log_through_observer
from image_service.settings.settings import Settings, read_settings

if TYPE_CHECKING:
    from twisted.application.service import Service


class Options(usage.Options):
    """``twistd image-service``: everything but the mode comes from the environment."""

    optFlags = [  # noqa: RUF012 - Twisted's way to declare
        ["standalone", None, "with the embedded stand-in for assisted-service"],
    ]
    settings: Settings

    def postOptions(self) -> None:
        """Read the environment, and log as ``image-service serve`` does.

        Raises:
            UsageError: the log file cannot be opened.
            SystemExit: it has faults, all of which are printed. After a UsageError, twistd would print its
                own options and exit with status 1, after which service managers try again.
        """
        self.settings = read_settings(standalone=bool(self["standalone"]))
        if self.parent is not None:
            try:
                log_through_observer(self.parent)
            except OSError as error:
                raise usage.UsageError(f"--logfile: {describe_os_error(error)}") from error


def makeService(options: Options) -> Service:
    """Return the service, not yet started: a supervisor if there is more than one serving process."""
    kind = Supervisor if options.settings.process.workers > 1 else ImageService
    return kind(get_reactor(), options.settings, standalone=bool(options["standalone"]))
