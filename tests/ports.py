"""Ports for servers that have to be told a number before they listen."""

from __future__ import annotations

import socket

_KEEPERS: list[socket.socket] = []
"""What keeps the ports that were given out; until the end, for a server may be started again on its own."""


def free_port() -> int:
    """Find a port that nobody has, and keep it for whoever listens there by its number.

    The kernel gives it to nobody else as long as a socket has it, and lets a server have it beside that
    socket, because both say SO_REUSEADDR and this one does not listen.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    _KEEPERS.append(keeper)
    port: int = keeper.getsockname()[1]
    return port
