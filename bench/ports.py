"""Reserved ports for servers that need a port number before they listen."""

from __future__ import annotations

import atexit
import contextlib
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_START_SECONDS = 60


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


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on a port of 127.0.0.1.

    Raises:
        RuntimeError: it has exited, or does not listen after a minute.
    """
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} does not listen on port {port}")
        time.sleep(0.01)
