"""Whether a client still takes what it is sent: kernel buffers hide that from whoever writes."""

from __future__ import annotations

import struct
import sys
from fcntl import ioctl
from socket import IPPROTO_TCP, TCP_INFO
from termios import TIOCOUTQ
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from socket import socket

    from twisted.internet.interfaces import IReactorTime

_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_OFFSET = 120  # in struct tcp_info, Linux 4.1 and later


def taken_bytes(handle: socket) -> int:
    """Count what the kernel has taken to send.

    Args:
        handle: of a connection.

    Returns:
        bytes since the connection began.
    """
    acked, held = _acknowledged_bytes(handle), _held_bytes(handle)
    while (now := _acknowledged_bytes(handle)) != acked:  # what came in between is in neither
        acked, held = now, _held_bytes(handle)
    return acked + held


def is_connected(handle: socket) -> bool:
    """Whether a connection goes on, as far as the kernel knows.

    Args:
        handle: of a connection that was made.
    """
    try:
        handle.getpeername()
    except OSError:
        return False
    return True


class Progress:
    """What a client's TCP acknowledges.

    Args:
        clock: the reactor's.
        handle: of the connection.
    """

    __slots__ = ("_acked", "_acked_at", "_clock", "_handle")

    def __init__(self, clock: IReactorTime, handle: socket) -> None:
        self._clock = clock
        self._handle = handle
        self._acked = 0
        self._acked_at = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self._acked = _acknowledged_bytes(self._handle)
        self._acked_at = self._clock.seconds()

    def seconds_without(self) -> float:
        """How long nothing has been acknowledged, as far as this was asked; 0: something was, since then."""
        now, acked = self._clock.seconds(), _acknowledged_bytes(self._handle)
        if acked != self._acked:
            self._acked, self._acked_at = acked, now
        return now - self._acked_at

    @property
    def outstanding(self) -> bool:
        """Whether the kernel still holds bytes that the client's has not acknowledged."""
        return _held_bytes(self._handle) > 0


def _acknowledged_bytes(handle: socket) -> int:
    """Since the connection began."""
    info = handle.getsockopt(IPPROTO_TCP, TCP_INFO, _BYTES_ACKED_OFFSET + _BYTES_ACKED.size)
    acked: int = _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_OFFSET)[0]
    return acked


def _held_bytes(handle: socket) -> int:
    """Sent or not, and not acknowledged."""
    return int.from_bytes(ioctl(handle, TIOCOUTQ, bytes(4)), sys.byteorder)
