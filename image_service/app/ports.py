"""The ports for clients: bound at the start, for all processes of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.transport.listeners import cannot_listen, log_listening
from image_service.server.transport.sending.tcp import bind_together

if TYPE_CHECKING:
    import socket

    from image_service.settings.settings import Settings


def bind_ports(settings: Settings) -> list[list[socket.socket]]:
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
