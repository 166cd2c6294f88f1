"""What a process acquires before it drops privileges: ports and descriptors."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.transport.tcp import bind_together

if TYPE_CHECKING:
    import socket

    from image_service.settings.network import ListenSettings

_log = Logger()


def bind_ports(settings: ListenSettings, processes: int) -> list[list[socket.socket]]:
    """Bind the ports before anything else starts.

    Args:
        settings: the ports.
        processes: how many share them.

    Returns:
        for each port, ``LISTEN_PORT`` first, a socket for each process.

    Raises:
        SystemExit: a port cannot be bound, such as one in use.
    """
    ports = [port for port in (settings.port, settings.http_port) if port is not None]
    bound = []
    for port in ports:
        try:
            bound.append(bind_together(port, processes))
        except OSError as error:
            _log.critical("port {port}: {reason}", port=port, reason=error.strerror)
            raise SystemExit(1) from None
    return bound


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit: every connection is a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
