"""What a process takes from the system before it gives up privileges: ports and descriptors."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.transport.tcp import bind_together

if TYPE_CHECKING:
    import socket

    from image_service.settings.settings import Settings

_log = Logger()


def take_ports(settings: Settings, processes: int) -> list[list[socket.socket]]:
    """Take the ports, so that one in use ends the start at once.

    Args:
        settings: name them.
        processes: how many share them.

    Returns:
        of each port, ``LISTEN_PORT`` first, a socket for each process.

    Raises:
        SystemExit: it cannot be had.
    """
    ports = (settings.listen.port, settings.listen.http_port)
    return [_take(port, processes) for port in ports if port is not None]


def _take(port: int, processes: int) -> list[socket.socket]:
    try:
        return bind_together(port, processes)
    except OSError as error:
        _log.critical("port {port}: {reason}", port=port, reason=error.strerror)
        raise SystemExit(1) from None


def raise_descriptor_limit() -> None:
    """Every connection is a descriptor: take as many as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
