"""Listeners of APIs: TCP, with TLS or without, and Unix sockets."""

from __future__ import annotations

import socket
import stat
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.tcp import Port
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory

from image_service.core.errors import ConfigurationError
from image_service.server.transport.listeners import cannot_listen, log_listening
from image_service.server.transport.sending.tcp import BACKLOG, UNSENT_BYTES, set_unsent_limit
from image_service.server.transport.tls.certificate import ServerCertificate
from image_service.server.web_api.connections import MAX_CONNECTIONS, LimitedFactory

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IReactorTime

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.settings.network import TlsSettings
    from image_service.settings.parsers import ListenAddress

_log = Logger()

SOCKET_MODE = 0o660
_CONNECT_SECONDS = 1.0
_ACCEPTS = 16  # a quarter of the connections that an address may have


class ApiPort(Port):
    """A port that accepts few connections at a time.

    The requests of those are read before many others can follow, for which they would be aborted.
    """

    def doRead(self) -> None:
        """Accept connections."""
        self.numberAccepts = _ACCEPTS
        super().doRead()  # type: ignore[no-untyped-call]


@attrs.frozen
class ApiListener:
    """Listens for connections of an API until the parts stop, which aborts those that are open.

    Args:
        variable: that has the addresses, for errors.
        max_connections: on each address.
    """

    parts: PartsStack
    variable: str
    purpose: str
    site: IProtocolFactory
    max_connections: int = MAX_CONNECTIONS

    def listen(self, address: ListenAddress, tls: TlsSettings) -> None:
        """Listen on an address, beyond loopback with TLS if there is a certificate.

        Raises:
            ConfigurationError: the address cannot be listened on; key or certificate cannot be read.
        """
        reactor = self.parts.reactor
        site = self.site if address.is_loopback else _with_tls(self.site, tls, reactor)
        factory = LimitedFactory(site, reactor, self.max_connections)
        try:
            port = ApiPort(address.port, factory, BACKLOG, address.host, reactor)
            port.startListening()
        except CannotListenError as error:
            raise cannot_listen(self.variable, address.host, address.port, error.socketError) from None
        set_unsent_limit(port.socket, UNSENT_BYTES)  # accepted sockets inherit it
        self._stop_later(port, factory)
        number = cast("IPv4Address | IPv6Address", port.getHost()).port  # type: ignore[no-untyped-call]
        log_listening(address.host, number, f"{'HTTP' if site is self.site else 'HTTPS'}: {self.purpose}")

    def listen_unix(self, path: Path) -> None:
        """Listen on a Unix socket of mode 0660; replace the socket of a crashed process.

        Raises:
            ConfigurationError: the path is another file or a socket in use, or the permission is missing.
        """
        factory = LimitedFactory(self.site, self.parts.reactor, self.max_connections)
        try:
            if not _is_free(path):
                raise ConfigurationError(f"{self.variable}: {path} is in use, or no socket")
            port = self.parts.reactor.listenUNIX(str(path), factory, mode=SOCKET_MODE)
        except (OSError, CannotListenError) as error:
            reason = getattr(error, "socketError", error)
            raise ConfigurationError(f"{self.variable}: cannot listen on {path}: {reason}") from None
        self._stop_later(port, factory)
        _log.info("listening on {path} ({purpose})", path=str(path), purpose=f"HTTP: {self.purpose}")

    def _stop_later(self, port: IListeningPort, factory: LimitedFactory) -> None:
        async def stop() -> None:
            await maybeDeferred(port.stopListening)  # which removes a Unix socket
            factory.abort_all()

        self.parts.push_async_callback(stop)


def _with_tls(site: IProtocolFactory, tls: TlsSettings, clock: IReactorTime) -> IProtocolFactory:
    """Return the site below TLS; without a certificate, the site."""
    certificate = ServerCertificate.from_settings(tls, clock)
    if certificate is None:
        return site
    # Twisted's own TLS: that of the listeners for clients sends files.
    return TLSMemoryBIOFactory(certificate, isClient=False, wrappedFactory=site)


def _is_free(path: Path) -> bool:
    """Return True if a path is free; remove a socket there that no process listens on."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_CONNECT_SECONDS)
            client.connect(str(path))
    except FileNotFoundError:
        return True
    except ConnectionRefusedError:
        path.unlink()
        return True
    return False
