"""The common base of the service and of the supervisor of workers: ports, start and shutdown."""

from __future__ import annotations

import os
import platform
import resource
import signal
from itertools import chain
from typing import TYPE_CHECKING

from OpenSSL import SSL
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger

import twisted
from image_service import __version__
from image_service.app.ports import bind_ports
from image_service.app.reload import Configuration, Reloader, read_configuration
from image_service.app.service_manager import ServiceManager
from image_service.app.shutdown import ShutdownHandler, stop_with_failure
from image_service.concurrency.parts import PartsStack
from image_service.concurrency.signals import UNUSED, handle_signal, ignore_signals
from image_service.errors import ConfigurationError
from image_service.images.composers import newest_composer
from image_service.settings.settings import read_texts
from image_service.settings.warnings import find_warnings

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from image_service.settings.settings import Settings

_log = Logger()


class ProcessService(Service):
    """A service that owns its process. Subclasses start, reload and stop its parts.

    Args:
        force: is called at the second signal, when the shutdown has begun.
    """

    def __init__(
        self, reactor: EPollReactor, settings: Settings, force: Callable[[], None], *, standalone: bool
    ) -> None:
        self.shutdown = ShutdownHandler(reactor, force)
        self.manager = ServiceManager(os.environ)
        self.reloader = Reloader(
            lambda: read_configuration(os.environ, standalone=standalone), self.reload, self.manager
        )
        self._reactor = reactor
        self._settings = settings
        self._standalone = standalone
        self._parts = PartsStack(reactor)
        self._started: Deferred[None] = succeed(None)
        self._has_started = False
        self._ports: list[list[socket.socket]] = []
        """For each port, ``LISTEN_PORT`` first: the listening socket of each process."""

    def privilegedStartService(self) -> None:
        """Bind the ports, which may need privileges, set the limits of the process, and handle signals.

        Raises:
            SystemExit: a port cannot be bound, such as one in use; the status is that of a configuration
                that is not valid.
        """
        Service.privilegedStartService(self)
        _log_versions()
        self._reactor.callWhenRunning(self.shutdown.handle_signals)
        handle_signal(signal.SIGHUP, lambda: self._reactor.callFromThread(self._reload_unless_stopping))
        ignore_signals(*UNUSED)
        self._reactor.callWhenRunning(self.manager.start_watchdog, self._reactor)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every connection is a descriptor
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a core holds secrets; prlimit(1) allows it
        try:
            self._ports = bind_ports(self._settings)
        except ConfigurationError as error:
            _log.critical("{fault}", fault=error.detail)
            raise SystemExit(os.EX_CONFIG) from None
        for warning in find_warnings(self._settings, self.base_url, standalone=self._standalone):
            _log.warn("{warning}", warning=warning)

    @property
    def base_url(self) -> str:
        """The URL by which clients reach the service."""
        return self._settings.base_url(self._ports[0][0].getsockname()[1])

    def close_sockets(self) -> None:
        """Close the listening sockets of this process; duplicates of them stay open."""
        for listener in chain.from_iterable(self._ports):
            listener.close()

    def startService(self) -> None:
        """Start; a failure stops the process."""

        def fail(failure: Failure) -> None:
            if isinstance(failure.value, ConfigurationError):
                _log.critical("{fault}", fault=failure.value.detail)
                stop_with_failure(self._reactor, os.EX_CONFIG)
            else:
                _log.failure("the service cannot start", failure=failure)
                stop_with_failure(self._reactor)

        async def start() -> None:
            try:
                self.reloader.texts = read_texts(os.environ)
            except ValueError as error:  # a file that could be read a moment before
                raise ConfigurationError("; ".join(error.args)) from None
            await self.start_parts()
            self._has_started = True

        Service.startService(self)
        self._started = Deferred.fromCoroutine(start()).addErrback(fail)

    def stopService(self) -> Deferred[None]:
        """Stop, once the start is over."""

        async def stop() -> None:
            self.manager.stopping()
            await self._started
            await self.stop_parts()
            _log.info("the service has stopped")

        Service.stopService(self)
        return Deferred.fromCoroutine(stop())

    def _reload_unless_stopping(self) -> None:
        if self.running:
            self.reloader.request()

    async def reload(self, configuration: Configuration) -> list[str]:
        """Replace the configuration, once the start is over; return the names of changed files.

        Raises:
            ConfigurationError: it cannot be used; the previous one stays.
            CancelledError: the service stops, or has failed to start.
        """
        await self._started
        if not (self.running and self._has_started):
            raise CancelledError
        return await self.reload_parts(configuration)

    async def start_parts(self) -> None:
        """Start the parts of the process; the ports are bound."""
        raise NotImplementedError

    async def reload_parts(self, configuration: Configuration) -> list[str]:
        """Replace the configuration of the parts; see ``reload``."""
        raise NotImplementedError

    async def stop_parts(self) -> None:
        """Stop the parts in reverse order."""
        raise NotImplementedError


def _log_versions() -> None:
    _log.info(
        "image-service {version} (composer {composer}, Python {python}, Twisted {twisted}, {openssl})",
        version=__version__,
        composer=newest_composer().version,
        python=platform.python_version(),
        twisted=twisted.__version__,
        # The one that serves; the module ssl may have another.
        openssl=" ".join(SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode().split()[:2]),
    )
