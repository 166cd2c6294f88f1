"""The twistd plugin's options, and the service made of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twisted.python import usage

from image_service.app.reactor import get_reactor
from image_service.app.service import ImageService
from image_service.app.workers.supervisor import Supervisor
from image_service.errors import ConfigurationError
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    from twisted.application.service import Service


class Options(usage.Options):
    """``twistd image-service``: everything but the mode comes from the environment."""

    optFlags = [  # noqa: RUF012 - Twisted's way to declare
        ["standalone", None, "with the embedded stand-in for assisted-service"],
    ]
    settings: Settings

    def postOptions(self) -> None:
        """Read the environment.

        Raises:
            UsageError: it has faults; names all of them.
        """
        try:
            self.settings = Settings.from_environment(os.environ, standalone=bool(self["standalone"]))
        except ConfigurationError as error:
            raise usage.UsageError(f"the configuration is not valid:\n{error.detail}") from error


def makeService(options: Options) -> Service:
    """Return the service, not yet started: a supervisor if there is more than one worker."""
    kind = Supervisor if options.settings.process.workers > 1 else ImageService
    return kind(get_reactor(), options.settings, standalone=bool(options["standalone"]))
