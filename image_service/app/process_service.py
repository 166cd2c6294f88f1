"""The common base of the byte server and of the supervisor of the serving processes: ports and reload."""

from __future__ import annotations

import os
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from image_service.app.admin.base_url import BaseUrl
from image_service.app.reload import Configuration, Reloader, read_configuration
from image_service.app.role_service import RoleService
from image_service.core.errors import ConfigurationError
from image_service.server.transport.listeners import cannot_listen, log_listening
from image_service.server.transport.sending.tcp import bind_together
from image_service.settings.settings import read_texts
from image_service.settings.warnings import find_warnings

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor

    from image_service.settings.settings import Settings

_log = Logger()


class ProcessService(RoleService):
    """A service with ports. Subclasses start, reload and stop its parts.

    Args:
        force: is called at the second signal, when the shutdown has begun.
    """

    def __init__(
        self, reactor: EPollReactor, settings: Settings, force: Callable[[], None], *, standalone: bool
    ) -> None:
        super().__init__(reactor, force)
        self.reloader = Reloader(
            lambda: read_configuration(os.environ, standalone=standalone), self.reload, self.manager
        )
        self._settings = settings
        self._standalone = standalone
        self._ports: list[list[socket.socket]] = []
        """For each port, ``LISTEN_PORT`` first: the listening socket of each process."""

    def privilegedStartService(self) -> None:
        """Bind the ports too, which may need privileges.

        Raises:
            SystemExit: a port cannot be bound, such as one in use; the status is that of a configuration
                that is not valid.
        """
        super().privilegedStartService()
        try:
            self._ports = _bind_ports(self._settings)
        except ConfigurationError as error:
            _log.critical("{fault}", fault=error.detail)
            raise SystemExit(os.EX_CONFIG) from None
        base_url = self.base_url
        warnings = find_warnings(self._settings, base_url.url, standalone=self._standalone)
        for warning in chain(warnings, base_url.find_warnings()):
            _log.warn("{warning}", warning=warning)

    @cached_property
    def base_url(self) -> BaseUrl:
        """The URL by which clients reach the service."""
        port = self._ports[0][0].getsockname()[1]
        return BaseUrl(self._reactor, self._settings, port, standalone=self._standalone)

    @property
    def get_plain_url(self) -> Callable[[], str] | None:
        """Returns the URL of ``HTTP_LISTEN_PORT``; None: only its clients know how they reach it."""
        listen = self._settings.listen
        is_known = listen.address is not None and not listen.address.is_loopback and not listen.base_url
        if not is_known or len(self._ports) == 1:
            return None
        return partial(self.base_url.of_plain_port, self._ports[1][0].getsockname()[1])

    def close_sockets(self) -> None:
        """Close the listening sockets of this process; duplicates of them stay open."""
        for listener in chain.from_iterable(self._ports):
            listener.close()

    async def start_parts(self) -> None:
        """Record the files that variables name, to find changed ones later."""
        try:
            self.reloader.texts = read_texts(os.environ)
        except ValueError as error:  # a file that could be read a moment before
            raise ConfigurationError("; ".join(error.args)) from None

    def request_reload(self) -> None:
        """Read the configuration again."""
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

    async def reload_parts(self, configuration: Configuration) -> list[str]:
        """Replace the configuration of the parts; see ``reload``."""
        raise NotImplementedError

    async def stop_parts(self) -> None:
        """Stop the parts, then close the ports."""
        await super().stop_parts()
        self.close_sockets()


def _bind_ports(settings: Settings) -> list[list[socket.socket]]:
    """Bind ``LISTEN_PORT``, then ``HTTP_LISTEN_PORT`` if it is set: a listening socket for each process.

    Raises:
        ConfigurationError: a port cannot be bound, such as one in use.
    """
    listen = settings.listen
    scheme = "HTTPS" if settings.tls.is_enabled else "HTTP"
    bound = [_bind(settings, "LISTEN_PORT", listen.port, f"{scheme}: images")]
    if listen.http_port is not None:
        optional = {"PXE": listen.http_serves_initrd, "ISOs": listen.http_serves_isos}
        served = [*(name for name, is_served in optional.items() if is_served), "boot artifacts", "probes"]
        bound.append(_bind(settings, "HTTP_LISTEN_PORT", listen.http_port, f"HTTP: {', '.join(served)}"))
    return bound


def _bind(settings: Settings, variable: str, port: int, purpose: str) -> list[socket.socket]:
    address = settings.listen.address
    try:
        sockets = bind_together(port, settings.process.workers, address)
    except OSError as error:
        host = None if address is None else str(address)
        raise cannot_listen(variable, host, port, error, address_variable="LISTEN_ADDRESS") from None
    host, number, *_ = sockets[0].getsockname()
    log_listening(str(host), number, purpose)
    return sockets
