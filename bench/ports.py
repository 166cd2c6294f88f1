"""Reserved ports for servers that need a port number before they listen."""

from __future__ import annotations

import socket

_RESERVATIONS: list[socket.socket] = []
"""Sockets that hold the ports; kept until the end, because a server may be started again."""


def free_port() -> int:
    """Reserve a free port on 127.0.0.1, and return its number.

    The kernel assigns it to no other socket while one is bound to it. A server can bind to it nevertheless,
    because both sockets set SO_REUSEADDR and this one does not listen.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    _RESERVATIONS.append(reservation)
    port: int = reservation.getsockname()[1]
    return port
