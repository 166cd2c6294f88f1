"""The twistd plugin's options for the jobs role, and the service made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.python import usage

from image_service.app.reactor import get_reactor, use_asyncio_reactor
from image_service.core.errors import describe_os_error
from image_service.server.observability.log import log_through_observer
from image_service.settings.jobs.role import JobsRoleSettings, read_jobs_settings

if TYPE_CHECKING:
    from twisted.application.service import Service


class JobsOptions(usage.Options):
    """``twistd image-service-jobs``: all settings are environment variables.

    The engine's client needs asyncio's reactor, which becomes the default of this plugin.
    """

    settings: JobsRoleSettings

    def postOptions(self) -> None:
        """Install the reactor, read the environment, and log as the byte server does.

        Raises:
            UsageError: the log file cannot be opened.
            SystemExit: twistd was given another reactor, or the environment has faults, all of which are
                printed.
        """
        use_asyncio_reactor()
        self.settings = read_jobs_settings()
        if self.parent is not None:
            try:
                log_through_observer(self.parent)
            except OSError as error:
                raise usage.UsageError(f"--logfile: {describe_os_error(error)}") from error


Options = JobsOptions  # the name that twistd looks for


def makeService(options: JobsOptions) -> Service:
    """Return the service, not yet started."""
    # Imported here because the extra may be missing, which the settings have reported by now.
    from image_service.app.jobs.jobs_service import JobsService  # noqa: PLC0415

    return JobsService(get_reactor(), options.settings)
