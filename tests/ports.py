"""Reserved ports for servers that need a port number before they listen."""

from __future__ import annotations

import socket

_KEEPERS: list[socket.socket] = []
"""What keeps the ports that were given out; until the end, for a server may be started again on its own."""


def free_port() -> int:
    """Reserve a free port and return its number.

    The kernel gives the port to no other process while a socket holds it, and lets a server bind it beside
    that socket, because both set SO_REUSEADDR and this one does not listen.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    _KEEPERS.append(keeper)
    port: int = keeper.getsockname()[1]
    return port
