"""Reserved ports for servers that need a port number before they listen."""

from __future__ import annotations

import atexit
import socket


def free_port() -> int:
    """Reserve a port that is free on all addresses, and return its number.

    The kernel assigns it to no other socket while one is bound to it; if it were bound to 127.0.0.1 alone,
    the kernel could assign the port of another loopback address. A server can bind to it nevertheless,
    because both sockets set SO_REUSEADDR and this one does not listen.
    """
    family, address = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")  # noqa: S104 - it does not listen
    reservation = socket.socket(family)
    if family is socket.AF_INET6:
        reservation.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((address, 0))
    atexit.register(reservation.close)  # kept until then, because a server may be started again
    port: int = reservation.getsockname()[1]
    return port
