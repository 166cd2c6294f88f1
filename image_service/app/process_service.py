"""The common base of the service and of the supervisor of workers: ports, start and shutdown."""

from __future__ import annotations

import resource
from itertools import chain
from typing import TYPE_CHECKING

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from image_service.app.shutdown import ShutdownHandler, stop_with_failure
from image_service.concurrency.parts import PartsStack
from image_service.files.private_files import warn_if_exposed
from image_service.transport.tcp import bind_together

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from image_service.settings.settings import Settings

_log = Logger()


class ProcessService(Service):
    """A service that owns its process. Subclasses define ``start_parts`` and ``stop_parts``.

    Args:
        force: is called at the second signal, when the shutdown has begun.
    """

    def __init__(
        self, reactor: EPollReactor, settings: Settings, force: Callable[[], None], *, standalone: bool
    ) -> None:
        self.shutdown = ShutdownHandler(reactor, force)
        self._reactor = reactor
        self._settings = settings
        self._standalone = standalone
        self._parts = PartsStack(reactor)
        self._started: Deferred[None] = succeed(None)
        self._ports: list[list[socket.socket]] = []
        """For each port, ``LISTEN_PORT`` first: the listening socket of each process."""

    def privilegedStartService(self) -> None:
        """Bind the ports, which may need privileges, set the limits of the process, and handle signals.

        Raises:
            SystemExit: a port cannot be bound, such as one in use.
        """
        Service.privilegedStartService(self)
        self._reactor.callWhenRunning(self.shutdown.handle_signals)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every connection is a descriptor
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a core holds secrets; prlimit(1) allows it
        if self._settings.tls.key_file is not None:
            warn_if_exposed(self._settings.tls.key_file)
        listen, workers = self._settings.listen, self._settings.process.workers
        for port in [port for port in (listen.port, listen.http_port) if port is not None]:
            try:
                self._ports.append(bind_together(port, workers, listen.address))
            except OSError as error:
                where = f"{listen.address or ''} port {port}".lstrip()
                _log.critical("cannot bind {where}: {reason}", where=where, reason=error.strerror)
                raise SystemExit(1) from None

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
            _log.failure("the service cannot start", failure=failure)
            stop_with_failure(self._reactor)

        Service.startService(self)
        self._started = Deferred.fromCoroutine(self.start_parts()).addErrback(fail)

    def stopService(self) -> Deferred[None]:
        """Stop, once the start is over."""

        async def stop() -> None:
            await self._started
            await self.stop_parts()
            _log.info("the service has stopped")

        Service.stopService(self)
        return Deferred.fromCoroutine(stop())

    async def start_parts(self) -> None:
        """Start the parts of the process; the ports are bound."""
        raise NotImplementedError

    async def stop_parts(self) -> None:
        """Stop the parts in reverse order."""
        raise NotImplementedError
