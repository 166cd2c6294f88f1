"""TCP sockets: listening, and the kernel's counts of a connection's bytes (Linux)."""

from __future__ import annotations

import errno
import socket
import struct
import sys
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    IPAddress: TypeAlias = IPv4Address | IPv6Address

BACKLOG = 1024
_ALL_IPV4 = "0.0.0.0"  # noqa: S104 - as it says
UNSENT_BYTES = 256 * 1024
"""The bytes of a response that the kernel keeps beyond those on their way to the client."""

_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes that TCP has not sent yet
_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_OFFSET = 120  # in struct tcp_info, Linux 4.1 and later


def bind_together(port: int, processes: int, address: IPAddress | None = None) -> list[socket.socket]:
    """Return a listening socket for each process; the kernel spreads connections over them evenly.

    Args:
        port: 0: any that is free.
        address: as in `bind`.

    Raises:
        OSError: the port cannot be bound.
    """
    first = bind(port, address)
    if processes == 1:
        return [first]
    # Only now: bound with it, it would be shared with another service that has the port already.
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    number = first.getsockname()[1]
    return [first, *(bind(number, address, shared=True) for _ in range(1, processes))]


def bind(port: int, address: IPAddress | None = None, *, shared: bool = False) -> socket.socket:
    """Return a listening socket.

    Args:
        port: 0: any that is free.
        address: to listen on; ``::`` is IPv4 too. None: ``::``, or ``0.0.0.0`` if there is no IPv6.
        shared: with other sockets that are (``SO_REUSEPORT``).

    Raises:
        OSError: the port cannot be bound.
    """
    if address is None:
        try:
            return _listen("::" if socket.has_dualstack_ipv6() else _ALL_IPV4, port, shared=shared)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            return _listen(_ALL_IPV4, port, shared=shared)
    return _listen(str(address), port, shared=shared)


def _listen(host: str, port: int, *, shared: bool) -> socket.socket:
    listener = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        backlog=BACKLOG,
        reuse_port=shared,
    )
    # Accepted sockets inherit it. Without it the kernel takes up to 4 MiB for each client that does not read.
    set_unsent_limit(listener, UNSENT_BYTES)
    listener.setblocking(False)  # noqa: FBT003 - its signature
    return listener


def set_unsent_limit(handle: socket.socket, count: int) -> None:
    """Limit the bytes that the kernel accepts, and buffers unsent, to about `count`."""
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, count)


def is_connected(handle: socket.socket) -> bool:
    """Return True unless the kernel knows that the connection has ended."""
    try:
        handle.getpeername()
    except OSError:
        return False
    return True


def accepted_bytes(handle: socket.socket) -> int:
    """Return the bytes that the kernel has accepted for sending since the connection began."""
    acknowledged, queued = acknowledged_bytes(handle), queued_bytes(handle)
    while (now := acknowledged_bytes(handle)) != acknowledged:  # bytes that moved in between are in neither
        acknowledged, queued = now, queued_bytes(handle)
    return acknowledged + queued


def acknowledged_bytes(handle: socket.socket) -> int:
    """Return the bytes that the client's TCP has acknowledged since the connection began."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_OFFSET + _BYTES_ACKED.size)
    count: int = _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_OFFSET)[0]
    return count


def queued_bytes(handle: socket.socket) -> int:
    """Return the bytes in the kernel's buffer, sent or not, that are not acknowledged."""
    return int.from_bytes(ioctl(handle, TIOCOUTQ, bytes(4)), sys.byteorder)


def unsent_bytes(handle: socket.socket) -> int:
    """Return the bytes in the kernel's buffer that have not been sent."""
    return int.from_bytes(ioctl(handle, _SIOCOUTQNSD, bytes(4)), sys.byteorder)
