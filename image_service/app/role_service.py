"""The common base of services that own their process: signals and limits, start and shutdown."""

from __future__ import annotations

import os
import platform
import resource
import signal
from typing import TYPE_CHECKING

from OpenSSL import SSL
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

import twisted
from image_service import __version__
from image_service.app.service_manager import ServiceManager
from image_service.app.shutdown import ShutdownHandler, stop_with_failure
from image_service.common.concurrency.process_parts import PartsStack
from image_service.common.concurrency.signals import UNUSED, handle_signal, ignore_signals
from image_service.common.files.exposure import describe_denial
from image_service.common.files.modes import share_files
from image_service.core.errors import ConfigurationError, ImageServiceError
from image_service.core.images.layouts import newest_layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from image_service.settings.admin import AdminSettings
    from image_service.settings.network import TlsSettings

_log = Logger()


class RoleService(Service):
    """A service that owns its process. Subclasses start and stop its parts.

    Args:
        force: is called at the second signal, when the shutdown has begun.
    """

    def __init__(self, reactor: EPollReactor, force: Callable[[], None]) -> None:
        self.shutdown = ShutdownHandler(reactor, force)
        self.manager = ServiceManager(os.environ)
        self._reactor = reactor
        self._parts = PartsStack(reactor)
        self._started: Deferred[None] = succeed(None)
        self._has_started = False

    def privilegedStartService(self) -> None:
        """Set the limits of the process, and handle signals."""
        Service.privilegedStartService(self)
        _log_versions()
        share_files()
        self._reactor.callWhenRunning(self.shutdown.handle_signals)
        handle_signal(signal.SIGHUP, lambda: self._reactor.callFromThread(self._reload_unless_stopping))
        ignore_signals(*UNUSED)
        self._reactor.callWhenRunning(self.manager.start_watchdog, self._reactor)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every connection is a descriptor
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a core holds secrets; prlimit(1) allows it

    def announce_page(self, admin: AdminSettings, tls: TlsSettings) -> None:
        """Log the URL of the page of ``ADMIN_LISTEN``, which is the last line of a start."""
        url = admin.local_url(has_certificate=tls.is_enabled)
        if url and self.running:
            _log.info("status page: {url}", url=url)

    def startService(self) -> None:
        """Start; a failure stops the process."""

        def fail(failure: Failure) -> None:
            if isinstance(failure.value, ConfigurationError):
                _log.critical("{fault}", fault=failure.value.detail)
                stop_with_failure(self._reactor, os.EX_CONFIG)
            elif isinstance(failure.value, PermissionError) and failure.value.filename:
                _log.critical("{fault}", fault=describe_denial(failure.value))
                stop_with_failure(self._reactor, os.EX_CONFIG)
            elif isinstance(failure.value, ImageServiceError | OSError):
                _log.critical("the service cannot start: {reason}", reason=str(failure.value))
                stop_with_failure(self._reactor)
            else:
                _log.failure("the service cannot start", failure=failure)
                stop_with_failure(self._reactor)

        async def start() -> None:
            await self.start_parts()
            self._has_started = True

        Service.startService(self)
        self._started = Deferred.fromCoroutine(start()).addErrback(fail)

    def stopService(self) -> Deferred[None]:
        """Stop, after the start."""

        async def stop() -> None:
            self.manager.stopping()
            await self._started
            await self.stop_parts()
            _log.info("the service has stopped")

        Service.stopService(self)
        return Deferred.fromCoroutine(stop())

    def _reload_unless_stopping(self) -> None:
        if self.running:
            self.request_reload()

    def request_reload(self) -> None:
        """Reload, at SIGHUP; the default is to do nothing."""

    async def start_parts(self) -> None:
        """Start the parts of the process.

        Raises:
            ConfigurationError: another start would fail in the same way.
        """
        raise NotImplementedError

    async def stop_parts(self) -> None:
        """Stop the parts in reverse order."""
        await self._parts.aclose()


def _log_versions() -> None:
    _log.info(
        "image-service {version} (layout {layout}, Python {python}, Twisted {twisted}, {openssl})",
        version=__version__,
        layout=newest_layout().version,
        python=platform.python_version(),
        twisted=twisted.__version__,
        # The one that serves; the module ssl may have another.
        openssl=" ".join(SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode().split()[:2]),
    )
